//! The fingerprint of a key.

use farbus_control::fingerprint::Fingerprint;
use ring::digest;

/// The fingerprint of a SubjectPublicKeyInfo in DER.
pub fn fingerprint_of_key(der: &[u8]) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, der).as_ref());
    Fingerprint::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_the_sha_256_of_the_key() {
        assert_eq!(fingerprint_of_key(b"abc").to_string(), "xj4bnp4pahh6uqkbidpf3lrceoyagyndsylxvhfucd7wd4qacwwq");
    }
}
