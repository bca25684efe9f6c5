//! Layers: endpoints around an endpoint, of any backend.
