//! A process without a free file descriptor can open neither `/proc/PID/stat` nor a pidfd: it takes no client for dead that
//! may be alive, and still notices those that are dead.

#![cfg(all(feature = "shm", target_os = "linux"))]

mod children;

use children::*;
use lockwright_fabric::backend::shm::{ShmSpace, SpaceOptions};
use lockwright_fabric::*;

/// What child processes run; a test only because that is how a test binary finds it.
#[test]
fn child() {
    serve_if_child();
}

struct Scene {
    space: ShmSpace,
    place: Place,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        Self { space: ShmSpace::open(&place.0, &SpaceOptions::default()).unwrap(), place }
    }

    fn client(&self) -> Process {
        Process::start(&self.place.0, "child")
    }

    /// A client that opens a last file in vain.
    fn without_descriptors(&self) -> Process {
        let process = Process::start_with_few_descriptors(&self.place.0, "child");
        assert!(process.ask(&[EXHAUST])[0] > 0);
        process
    }
}

fn peer(process: &Process) -> u64 {
    process.me.0.into()
}

/// Nobody is left who could be taken for it, not even a zombie.
fn kill(process: &mut Process) {
    process.child.kill().unwrap();
    process.child.wait().unwrap();
}

#[test]
fn a_client_without_descriptors_takes_nobody_for_dead() {
    let scene = Scene::new();
    let (other, poor) = (scene.client(), scene.without_descriptors());
    assert_eq!(poor.ask(&[IS_ALIVE, peer(&other)]), [1]);
    assert_eq!(poor.ask(&[DEAD]), [0; 0]);
    assert_eq!(other.ask(&[IS_MEMBER]), [1], "nobody has marked it dead");
    assert!(scene.space.is_alive(other.me));
}

#[test]
fn a_client_without_descriptors_sends_to_the_living_and_not_to_the_dead() {
    let scene = Scene::new();
    let (mut other, poor) = (scene.client(), scene.without_descriptors());
    let send: Vec<_> = [SEND, peer(&other)].into_iter().chain([0; 7]).collect();
    // The second finds the first unread, and looks whether its reader is alive.
    assert_eq!([poor.ask(&send), poor.ask(&send)], [[0], [0]]);
    kill(&mut other);
    assert_eq!(decode_error(&poor.ask(&send)), FabricError::PeerLost(other.me));
}

#[test]
fn a_client_without_descriptors_notices_an_exit() {
    let scene = Scene::new();
    let (mut other, poor) = (scene.client(), scene.without_descriptors());
    kill(&mut other);
    assert_eq!(poor.ask(&[IS_ALIVE, peer(&other)]), [0]);
    assert_eq!(poor.ask(&[DEAD]), [peer(&other)]);
}
