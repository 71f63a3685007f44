//! Fields out of a stranger's bytes, one after the other.

use crate::reject::Reject;

/// What is left of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    len: usize,
    version: u16,
}

impl<'a> Reader<'a> {
    /// Over a message, whole.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, len: bytes.len(), version: 0 }
    }

    /// The same, whose bytes belong to a snapshot of this version.
    pub(crate) fn of_version(self, version: u16) -> Self {
        Self { version, ..self }
    }

    /// The version of the snapshot that these bytes belong to; 0 if they belong to none.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Bytes that were read.
    pub fn read(&self) -> usize {
        self.len - self.bytes.len()
    }

    /// Bytes that were not read.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`Reject`], here and below: the message ends before them, or they are not what they should be.
    pub fn take(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], Reject> {
        let short = Reject::new(field, self.bytes.len() as u64, "all of it is in the message");
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Reject> {
        self.take(N, field).map(|bytes| bytes.try_into().expect("as many as were asked for"))
    }

    /// A number.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn u8(&mut self, field: &'static str) -> Result<u8, Reject> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn u16(&mut self, field: &'static str) -> Result<u16, Reject> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, Reject> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, Reject> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A length of 16 bits and as many bytes of UTF-8.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn text(&mut self, field: &'static str) -> Result<String, Reject> {
        let length = self.u16(field)?;
        let bytes = self.take(length.into(), field)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Reject::new(field, length.into(), "a text is UTF-8"))?;
        Ok(text.to_owned())
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn end(self, field: &'static str) -> Result<(), Reject> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(Reject::new(field, left as u64, "nothing comes behind it")),
        }
    }
}

/// A text as [`Reader::text`] reads it; what does not fit is cut off at a character's end.
pub(crate) fn put_text(to: &mut Vec<u8>, text: &str, bytes_max: usize) {
    let text = &text[..text.floor_char_boundary(bytes_max)];
    to.extend((text.len() as u16).to_le_bytes());
    to.extend(text.as_bytes());
}
