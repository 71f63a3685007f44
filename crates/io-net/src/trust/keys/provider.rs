//! The cryptography that TLS uses.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;

/// ring, regardless of what a system or a user may have set instead.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
