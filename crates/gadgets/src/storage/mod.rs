//! Bulk-Only mass storage.
