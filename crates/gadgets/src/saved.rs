//! The state that a gadget saves for a replacement process: numbers in sequence, little-endian.

/// Writes a saved state.
#[derive(Debug, Default)]
pub(crate) struct SavedStateWriter(Vec<u8>);

impl SavedStateWriter {
    /// The whole state.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn flag(&mut self, is_so: bool) {
        self.0.push(is_so.into());
    }

    pub fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    pub fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    /// Writes the number of bytes, and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("what a gadget holds is far below"));
        self.0.extend(bytes);
    }
}

/// Reads a saved state; `None` where it is invalid.
#[derive(Debug)]
pub(crate) struct SavedStateReader<'a>(pub &'a [u8]);

impl<'a> SavedStateReader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    pub fn flag(&mut self) -> Option<bool> {
        self.u8().filter(|byte| *byte <= 1).map(|byte| byte == 1)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Whether nothing more follows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `None` if more follows.
    pub fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_state_is_read_back_and_refused_if_truncated() {
        let mut saver = SavedStateWriter::default();
        saver.flag(true);
        saver.u8(7);
        saver.u32(1 << 20);
        saver.u64(1 << 40);
        saver.bytes(b"held");
        let bytes = saver.into_bytes();
        let read = |bytes: &[u8]| {
            let mut from = SavedStateReader(bytes);
            let all = (from.flag()?, from.u8()?, from.u32()?, from.u64()?, from.bytes()?.to_vec());
            from.end().map(|()| all)
        };
        assert_eq!(read(&bytes), Some((true, 7, 1 << 20, 1 << 40, b"held".to_vec())));
        assert!((0..bytes.len()).all(|end| read(&bytes[..end]).is_none()));
        assert_eq!(SavedStateReader(&[2]).flag(), None);
    }
}
