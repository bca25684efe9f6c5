//! Which packages and programs the chores are about. When one of them is renamed or moved, only this file changes
//! (and the table in `tidy/layers.rs`, which says who may see whom).

/// A program of the workspace.
pub(crate) struct Program {
    /// The package it is in.
    pub(crate) package: &'static str,
    /// The program itself.
    pub(crate) name: &'static str,
}

/// What explores the protocols: `check --all --json`.
pub(crate) const EXPLORER: Program = Program { package: "lockwright-lab", name: "lockwright-lab" };

/// What the program can have beside what users get by default, and the test command covers.
pub(crate) const WITH_ALL: &str =
    "lockwright-cli/cluster,lockwright-cli/compare,lockwright-cli/fiss,lockwright-cli/mount";
/// The same features, for a build of the program alone: what the tests have built is not built again.
pub(crate) const TESTED: &[&str] = &["cluster", "compare", "fiss", "mount"];
/// What the packages' program can do beside what users get by default.
pub(crate) const PACKAGED: &str = "cluster,fiss,manuals,mount";
/// The same of the C library and the Python package, which have `fiss` by themselves.
pub(crate) const LIBRARIES: &str = "cluster";
/// The library that programs preload.
pub(crate) const PRELOAD: &str = "lockwright-preload";
/// The package that is linted once more without its default features.
pub(crate) const SLIM: &str = "lockwright-fabric";

/// Packages with tests on real queue pairs, in the order in which they run; the test is called `rdma` in each.
pub(crate) const RDMA_TESTS: [&str; 4] =
    ["lockwright-fabric", "lockwright-proofs", "lockwright-server", "lockwright-cli"];

/// The package of the RDMA backend, whose unit tests need no device.
pub(crate) const RDMA_BACKEND: &str = "lockwright-fabric";

/// The command that people use, for tests that need it beside them.
pub(crate) const COMMAND_PROGRAM: Program = Program { package: "lockwright-cli", name: COMMAND };

/// The program that tests on real queue pairs run.
pub(crate) const COMMAND: &str = "lockwright";

/// What is optimised in the dev profile and need not be where nothing is explored.
pub(crate) const SIMULATOR: &str = "lockwright-sim";

/// The package and the test that run under Miri.
pub(crate) const MIRI: (&str, &str) = ("lockwright-locks", "qplock_threads");

/// The package with the decider in the kernel.
pub(crate) const XDP: &str = "lockwright-server";

/// The package whose test `etcd` runs on three real ones.
pub(crate) const CLUSTER: &str = "lockwright-cluster";
