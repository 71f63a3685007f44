//! A remote disk as a library sees it: bytes to read and write, without a kernel and without a mount.
//!
//! Name a disk that somebody shares (`farbus share disk:IMAGE` on HOST: `HOST/disk`), and its first sector is read;
//! without one it shares a disk in memory, and writes to that too.

use farbus::gadgets::storage::{StorageGadget, StorageOptions};
use farbus::model::BlockStore;
use farbus::model::block::MemoryStore;
use farbus::{Share, client};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let share = Share::default();
    let named = std::env::args().nth(1);
    let target = match &named {
        Some(target) => target.clone(),
        None => {
            let store = Box::new(MemoryStore::new(vec![0; 1 << 20]));
            share.add("disk", StorageGadget::device(store, StorageOptions::default())?)?;
            format!("{}/disk", share.listen(([127, 0, 0, 1], 0).into())?)
        }
    };
    let mut disk = client::open_disk(&target.parse()?)?;
    let info = disk.info();
    println!("{target}: '{} {}', {} sectors of {} bytes", info.vendor, info.product, info.blocks, info.block_bytes);

    let mut sector = [0; 512];
    disk.read_at(0, &mut sector)?;
    println!("  its first sector begins {}", sector[..16].escape_ascii());
    if named.is_some() {
        return Ok(());
    }
    disk.write_at(3, b"hello, disk")?;
    disk.flush()?;
    disk.read_at(0, &mut sector)?;
    println!("  and now it begins {}", sector[..16].escape_ascii());
    assert_eq!(&sector[..16], b"\0\0\0hello, disk\0\0");
    Ok(disk.eject()?)
}
