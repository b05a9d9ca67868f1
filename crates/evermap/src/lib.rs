//! An embedded, crash-surviving key-value store.
