//! The provider for real machines: chooses between their Redfish, IPMI, SSH and cluster, within bounds.
