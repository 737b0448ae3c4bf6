//! Redfish: one system behind one management controller, over HTTP and JSON.
