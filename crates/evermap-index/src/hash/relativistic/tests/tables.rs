//! What each table promises by itself.
