//! lockwright
