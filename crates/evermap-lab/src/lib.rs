//! Workloads, rivals, experiments and crash campaigns for Evermap's indexes.
