//! IPMI over LAN, for controllers that have no Redfish.
