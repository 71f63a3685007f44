//! Reads fields from untrusted bytes, one after the other.

use crate::reject::ProtocolViolation;

/// A message that is being read.
#[derive(Clone, Copy, Debug)]
pub struct FieldReader<'a> {
    bytes: &'a [u8],
    len: usize,
    version: u16,
}

impl<'a> FieldReader<'a> {
    /// Begins to read a whole message.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, len: bytes.len(), version: 0 }
    }

    /// Sets the version of the snapshot that the bytes belong to.
    pub(crate) fn of_version(self, version: u16) -> Self {
        Self { version, ..self }
    }

    /// The version of the snapshot that these bytes belong to; 0 if they belong to none.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Bytes read so far.
    pub fn read(&self) -> usize {
        self.len - self.bytes.len()
    }

    /// Bytes not read yet.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`ProtocolViolation`], here and below: the message ends too early, or the field is invalid.
    pub fn take(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], ProtocolViolation> {
        let short = ProtocolViolation::new(field, self.bytes.len() as u64, "all of it is in the message");
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ProtocolViolation> {
        self.take(N, field).map(|bytes| bytes.try_into().expect("as many as were asked for"))
    }

    /// Reads a number.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn u8(&mut self, field: &'static str) -> Result<u8, ProtocolViolation> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    /// Reads a little-endian number.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn u16(&mut self, field: &'static str) -> Result<u16, ProtocolViolation> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// Reads a little-endian number.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, ProtocolViolation> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// Reads a little-endian number.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, ProtocolViolation> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Reads a length of 16 bits and as many bytes of UTF-8. Of a longer text it keeps `bytes_max` bytes, as many as a
    /// peer of this project sends.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn text(&mut self, field: &'static str, bytes_max: usize) -> Result<String, ProtocolViolation> {
        let length = self.u16(field)?;
        let bytes = self.take(length.into(), field)?;
        let text =
            std::str::from_utf8(bytes).map_err(|_| ProtocolViolation::new(field, length.into(), "a text is UTF-8"))?;
        Ok(text[..text.floor_char_boundary(bytes_max)].to_owned())
    }

    /// All remaining bytes.
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// Checks that no bytes remain.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn end(self, field: &'static str) -> Result<(), ProtocolViolation> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(ProtocolViolation::new(field, left as u64, "nothing comes behind it")),
        }
    }
}

/// Writes a text as [`FieldReader::text`] reads it; cuts what does not fit at the end of a character.
pub(crate) fn put_text(to: &mut Vec<u8>, text: &str, bytes_max: usize) {
    let text = &text[..text.floor_char_boundary(bytes_max)];
    to.extend((text.len() as u16).to_le_bytes());
    to.extend(text.as_bytes());
}
