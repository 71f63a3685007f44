//! Any sequence of reads, writes and unmaps, cut and queued in any way, leaves what a plain array would hold.

use farbus_model::UrbStatus;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;

use super::disk::Disk;
use super::host::{CSW_BYTES, Data, FAILED, Host, PASSED, cdb_10, cdb_16, pattern, unmap};
use crate::storage::StorageOptions;
use crate::storage::scsi::command::op;

const BLOCKS: u64 = 64;
/// Addresses reach beyond the end: a command that fails there must change nothing.
const LBA_MAX: u64 = BLOCKS + 4;

#[derive(Clone, Debug)]
enum Op {
    Write { at: CommandExtent, seed: u8, cuts: Vec<Index> },
    Read { at: CommandExtent, cuts: Vec<Index>, early: bool },
    Unmap(Vec<(u64, u32)>),
    WriteSame { at: CommandExtent, seed: Option<u8>, unmap: bool },
    Verify { at: CommandExtent },
    Sync,
}

#[derive(Clone, Copy, Debug)]
struct CommandExtent {
    lba: u64,
    blocks: u64,
    /// Which size of command.
    width: u8,
}

impl CommandExtent {
    fn cdb(self, six: u8, ten: u8, twelve: u8, sixteen: u8) -> Vec<u8> {
        let (lba, blocks) = (self.lba as u32, self.blocks as u32);
        match self.width {
            // Six bytes cannot say zero blocks.
            0 if blocks > 0 => vec![six, 0, 0, lba as u8, blocks as u8, 0],
            1 => [[twelve, 0].as_slice(), &lba.to_be_bytes(), &blocks.to_be_bytes(), &[0; 2]].concat(),
            2 => cdb_16(sixteen, self.lba, blocks).to_vec(),
            _ => cdb_10(ten, lba, blocks as u16).to_vec(),
        }
    }

    fn is_inside(self) -> bool {
        self.lba + self.blocks <= BLOCKS
    }

    fn range(self, block_bytes: usize) -> std::ops::Range<usize> {
        self.lba as usize * block_bytes..(self.lba + self.blocks) as usize * block_bytes
    }
}

fn extent() -> impl Strategy<Value = CommandExtent> {
    (0..LBA_MAX, 0..12u64, 0..4u8).prop_map(|(lba, blocks, width)| CommandExtent { lba, blocks, width })
}

fn cuts() -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 0..5)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (extent(), any::<u8>(), cuts()).prop_map(|(at, seed, cuts)| Op::Write { at, seed, cuts }),
        4 => (extent(), cuts(), any::<bool>()).prop_map(|(at, cuts, early)| Op::Read { at, cuts, early }),
        1 => prop::collection::vec((0..LBA_MAX, 0..9u32), 0..4).prop_map(Op::Unmap),
        1 => (extent(), any::<Option<u8>>(), any::<bool>())
            .prop_map(|(at, seed, unmap)| Op::WriteSame { at, seed, unmap }),
        1 => extent().prop_map(|at| Op::Verify { at }),
        1 => Just(Op::Sync),
    ]
}

/// Lengths of the pieces that `cuts` make of `len` bytes.
fn pieces(len: usize, cuts: &[Index]) -> Vec<usize> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).chain([len]).collect();
    ends.sort_unstable();
    let mut start = 0;
    ends.into_iter().map(|end| end - std::mem::replace(&mut start, end)).filter(|piece| *piece > 0).collect()
}

struct World {
    host: Host,
    disk: Disk,
    model: Vec<u8>,
    block_bytes: usize,
}

impl World {
    fn new(block_bytes: usize) -> Self {
        let len = BLOCKS as usize * block_bytes;
        let disk = Disk::new(len as u64);
        let options = StorageOptions { sector_bytes: block_bytes as u32, ..StorageOptions::default() };
        Self { host: Host::new(disk.clone(), options), disk, model: vec![0; len], block_bytes }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Write { at, seed, cuts } => self.write(at, seed, &cuts),
            Op::Read { at, cuts, early } => self.read(at, &cuts, early),
            Op::Unmap(ranges) => self.unmap(&ranges),
            Op::WriteSame { at, seed, unmap } => self.write_same(at, seed, unmap),
            Op::Verify { at } => self.verify(at),
            Op::Sync => {
                self.host.passes(&cdb_10(op::SYNCHRONIZE_CACHE_10, 0, 0), Data::None);
            }
        }
    }

    fn write(&mut self, at: CommandExtent, seed: u8, cuts: &[Index]) {
        let data = pattern(seed, at.blocks as usize * self.block_bytes);
        let cdb = at.cdb(op::WRITE_6, op::WRITE_10, op::WRITE_12, op::WRITE_16);
        if !at.is_inside() {
            assert_eq!(self.host.command(&cdb, Data::Out(data)).status, FAILED);
            return;
        }
        let status = self.host.submit_in(CSW_BYTES);
        let wrapper = self.host.cbw(&cdb, &Data::Out(data.clone()));
        self.host.submit_out(wrapper);
        let mut rest = data.as_slice();
        for piece in pieces(data.len(), cuts) {
            let (front, behind) = rest.split_at(piece);
            self.host.submit_out(front);
            rest = behind;
        }
        let done: Vec<_> = std::iter::from_fn(|| self.host.done.pop()).collect();
        assert!(done.iter().all(|d| d.status == UrbStatus::Ok));
        let csw = done.last().unwrap();
        assert_eq!((csw.id, self.host.csw(csw)), (status, (PASSED, 0)));
        self.model[at.range(self.block_bytes)].copy_from_slice(&data);
    }

    fn read(&mut self, at: CommandExtent, cuts: &[Index], early: bool) {
        let bytes = at.blocks as usize * self.block_bytes;
        let cdb = at.cdb(op::READ_6, op::READ_10, op::READ_12, op::READ_16);
        if !at.is_inside() {
            assert_eq!(self.host.command(&cdb, Data::In(bytes as u32)).status, FAILED);
            return;
        }
        let wrapper = self.host.cbw(&cdb, &Data::In(bytes as u32));
        let mut rooms = pieces(bytes, cuts);
        rooms.push(CSW_BYTES as usize);
        if !early {
            self.host.submit_out(wrapper.clone());
        }
        for room in rooms {
            self.host.submit_in(room as u32);
        }
        if early {
            self.host.submit_out(wrapper);
        }
        let mut done: Vec<_> = std::iter::from_fn(|| self.host.done.pop()).collect();
        let csw = done.pop().unwrap();
        assert_eq!(self.host.csw(&csw), (PASSED, 0));
        let data: Vec<u8> = done.into_iter().flat_map(|d| d.payload.into_vec()).collect();
        assert_eq!(data, self.model[at.range(self.block_bytes)]);
    }

    fn unmap(&mut self, ranges: &[(u64, u32)]) {
        let (cdb, list) = unmap(ranges);
        let inside = ranges.iter().all(|(lba, blocks)| lba + u64::from(*blocks) <= BLOCKS);
        assert_eq!(self.host.command(&cdb, list).status, if inside { PASSED } else { FAILED });
        for (lba, blocks) in ranges.iter().filter(|_| inside) {
            let at = CommandExtent { lba: *lba, blocks: (*blocks).into(), width: 0 };
            self.model[at.range(self.block_bytes)].fill(0);
        }
    }

    fn write_same(&mut self, at: CommandExtent, seed: Option<u8>, unmap: bool) {
        let block = seed.map_or(vec![0; self.block_bytes], |seed| pattern(seed, self.block_bytes));
        let mut cdb = cdb_16(op::WRITE_SAME_16, at.lba, at.blocks as u32);
        cdb[1] = if unmap { 8 } else { 0 };
        let good = at.is_inside() && at.blocks > 0;
        let reply = self.host.command(&cdb, Data::Out(block.clone()));
        assert_eq!(reply.status, if good { PASSED } else { FAILED });
        if good {
            self.model[at.range(self.block_bytes)].copy_from_slice(&block.repeat(at.blocks as usize));
        }
    }

    fn verify(&mut self, at: CommandExtent) {
        let mut cdb = cdb_10(op::VERIFY_10, at.lba as u32, at.blocks as u16);
        cdb[1] = 2;
        if at.is_inside() && at.blocks > 0 {
            self.host.passes(&cdb, Data::Out(self.model[at.range(self.block_bytes)].to_vec()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("seeds"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_disk_holds_what_was_written(wide: bool, ops in prop::collection::vec(op(), 1..40)) {
        let mut world = World::new(if wide { 4096 } else { 512 });
        for op in ops {
            world.apply(op);
        }
        prop_assert!(world.disk.bytes(0, world.model.len()) == world.model);
    }
}
