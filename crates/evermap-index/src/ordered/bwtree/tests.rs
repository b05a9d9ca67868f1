//! States that crashes seldom leave, constructed.
