//! Kubernetes: join material, membership, drain.
