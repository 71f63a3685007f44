//! What this machine caches of a disk that is far away, so that its user waits less.

use std::str::FromStr;

/// What is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskCacheMode {
    /// Nothing: each request goes to the exporter.
    None,
    /// Data that is read in order is fetched before it is asked for. Users notice only that it is faster.
    #[default]
    Ahead,
    /// As `Ahead`; in addition writes are answered before they have arrived at the exporter, as by a disk with a write
    /// cache: programs flush what has to be durable.
    Writeback,
}

impl DiskCacheMode {
    const ALL: [DiskCacheMode; 3] = [DiskCacheMode::None, DiskCacheMode::Ahead, DiskCacheMode::Writeback];

    /// The word for it in options.
    pub const fn as_str(self) -> &'static str {
        match self {
            DiskCacheMode::None => "none",
            DiskCacheMode::Ahead => "ahead",
            DiskCacheMode::Writeback => "writeback",
        }
    }
}

impl FromStr for DiskCacheMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|cache| cache.as_str() == text).ok_or_else(|| {
            format!(
                "'{text}' is no cache: there are none, ahead (what is read in order is fetched before) and writeback (and what is \
                 written is answered before it has arrived; a flush makes it durable)"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_words_parse_as_printed_and_writeback_is_not_the_default() {
        for cache in DiskCacheMode::ALL {
            assert_eq!(cache.as_str().parse(), Ok(cache));
        }
        assert!("writethrough".parse::<DiskCacheMode>().unwrap_err().contains("writeback"));
        assert_eq!(DiskCacheMode::default(), DiskCacheMode::Ahead);
    }
}
