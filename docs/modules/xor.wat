;; The same module as xor.py in WebAssembly: wat2wasm xor.wat. docs/modules.md says what is exported and called.
(module
  (import "farbus" "say" (func $say (param i32 i32)))
  (memory (export "memory") 1)
  (global $key (mut i32) (i32.const 255))

  ;; Every frame is put at the beginning of memory.
  (func (export "farbus_room") (param $bytes i32) (result i32)
    (local $pages i32)
    (local.set $pages (i32.shr_u (i32.add (local.get $bytes) (i32.const 65535)) (i32.const 16)))
    (if (i32.gt_u (local.get $pages) (memory.size))
      (then (drop (memory.grow (i32.sub (local.get $pages) (memory.size))))))
    (i32.const 0))

  (func (export "farbus_turn") (param $at i32) (param $bytes i32) (result i64)
    (local $end i32)
    (local.set $end (i32.add (local.get $at) (local.get $bytes)))
    (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 1)) ;; start
      (then (call $begin (i32.add (local.get $at) (i32.const 6)) (local.get $end))))
    (if (i32.and
          (i32.eq (i32.load8_u (local.get $at)) (i32.const 2)) ;; message
          (i32.ne (i32.load8_u offset=1 (local.get $at)) (i32.const 2))) ;; and not from the other half
      (then
        ;; From above (0) to below (1), and the other way round.
        (i32.store8 offset=1 (local.get $at) (i32.xor (i32.load8_u offset=1 (local.get $at)) (i32.const 1)))
        (if (global.get $key)
          (then (call $spoil
            (i32.add (i32.add (local.get $at) (i32.const 22)) (i32.load16_u offset=20 (local.get $at)))
            (local.get $end))))
        (call $say (local.get $at) (local.get $bytes))))
    (i64.const -1)) ;; It does not want to be told the time.

  ;; The options are the key in decimal digits.
  (func $begin (param $at i32) (param $end i32)
    (local.set $at (i32.add (local.get $at) (i32.load16_u offset=4 (i32.const 0))))
    (if (i32.lt_u (local.get $at) (local.get $end)) (then (global.set $key (i32.const 0))))
    (block $done
      (loop $digit
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (global.set $key
          (i32.add (i32.mul (global.get $key) (i32.const 10)) (i32.sub (i32.load8_u (local.get $at)) (i32.const 48))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $digit))))

  ;; Eight bytes at once, as long as there are so many.
  (func $spoil (param $at i32) (param $end i32)
    (local $mask i64)
    (local.set $mask (i64.mul (i64.extend_i32_u (i32.and (global.get $key) (i32.const 255))) (i64.const 0x0101010101010101)))
    (block $done
      (loop $eight
        (br_if $done (i32.lt_u (i32.sub (local.get $end) (local.get $at)) (i32.const 8)))
        (i64.store (local.get $at) (i64.xor (i64.load (local.get $at)) (local.get $mask)))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (br $eight)))
    (block $done
      (loop $one
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (i32.store8 (local.get $at) (i32.xor (i32.load8_u (local.get $at)) (global.get $key)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $one)))))
