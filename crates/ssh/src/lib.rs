//! SSH: commands on a host that survive us, and proof that it has booted.
