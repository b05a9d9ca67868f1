//! A memcached-compatible server over Evermap.
