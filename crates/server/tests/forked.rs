//! A child that was forked off and goes on without `exec`: what it inherited belongs to its parent, whatever the child does
//! with it, and it can open its own.

#![allow(unsafe_code, reason = "fork(2) is what is tested")]

use lockwright::{
    Client, GuardState, HandleError, LockError, LostReason, TryLockError, UnlockError, inspect::Inspector,
};
use lockwright_server::{Server, ServerOptions};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, dup2_stderr, fork, pipe};
use std::fs::File;
use std::io::Read;
use std::task::{Context, Waker};
use std::time::Duration;

/// Longer than anything here takes; a child that hangs is killed.
const CHILD_SECONDS: u32 = 30;

/// What a child does must be as if it had not been forked off.
fn a_child_is_inert(address: &str, server: Option<Server>) {
    let client = Client::open(address).wait().unwrap();
    let inspector = Inspector::open(address).ok();
    let mutex = client.mutex("a").unwrap();
    let (guard, dropped) =
        (mutex.lock().wait().unwrap(), client.rwlock("b").unwrap().write().wait().unwrap());
    let ranges = client.range_lock("c").unwrap().write(3..9).wait().unwrap();
    let mut queued = Box::pin(client.rwlock("b").unwrap().read_timeout(Duration::from_secs(600)));
    assert!(queued.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let (read, write) = pipe().unwrap();
    // SAFETY: the child allocates, opens a client and exits; it touches nothing that a thread of the parent may hold.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(CHILD_SECONDS);
            dup2_stderr(&write).unwrap();
            let pid = nix::unistd::getppid().as_raw().cast_unsigned();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                assert_eq!(client.mutex("d").unwrap_err(), HandleError::OtherProcess { pid });
                assert_eq!(mutex.lock().wait().unwrap_err(), LockError::OtherProcess { pid });
                let tried = mutex.try_lock().wait().unwrap_err();
                assert_eq!(tried, TryLockError::Failed(LockError::OtherProcess { pid }));
                assert!(tried.to_string().contains("open your own after fork"));
                assert_eq!(guard.state(), GuardState::Lost);
                assert_eq!(guard.lost().reason(), Some(LostReason::OtherProcess));
                assert!(client.hold_while_process_lives(pid).is_err());
                if let Some(inspector) = &inspector {
                    assert!(inspector.entries().unwrap_err().to_string().contains("belongs to process"));
                }
                drop(queued);
                drop(dropped);
                drop(ranges);
                assert_eq!(guard.unlock().wait().unwrap_err(), UnlockError::OtherProcess { pid });
                drop((mutex, client, inspector, server));
                if address != "mem:" {
                    let own = Client::open(address).wait().unwrap();
                    for name in ["a", "b"] {
                        let tried = own.mutex(name).unwrap().try_lock().wait();
                        assert_eq!(tried.unwrap_err(), TryLockError::Busy, "the parent holds {name}");
                    }
                    assert!(own.range_lock("c").unwrap().try_write(3..4).wait().is_err());
                    own.mutex("e").unwrap().lock().wait().unwrap().unlock().wait().unwrap();
                }
            }));
            // SAFETY: ends the process, at once and without what `exit` would call.
            unsafe { nix::libc::_exit(i32::from(done.is_err())) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut said = String::new();
            File::from(read).read_to_string(&mut said).unwrap();
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0), "{address}: {said}");
            assert_eq!(said.lines().count(), 1, "one warning: {said}");
            assert!(said.contains(&format!("client of process {}", std::process::id())), "{said}");
            drop(queued);
            for state in [guard.state(), dropped.state(), ranges.state()] {
                assert_eq!(state, GuardState::Held, "{address}");
            }
            assert_eq!(mutex.try_lock().wait().unwrap_err(), TryLockError::Busy);
            guard.unlock().wait().unwrap();
            dropped.unlock().wait().unwrap();
            ranges.unlock().wait().unwrap();
            drop(mutex.lock().wait().unwrap());
            drop(server);
        }
    }
}

#[test]
fn a_forked_child_neither_releases_nor_takes_locks_of_its_parent_on_shared_memory() {
    let path = format!("/dev/shm/lockwright-forked-{}.space", std::process::id());
    a_child_is_inert(&format!("shm:{path}"), None);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_forked_child_neither_releases_nor_takes_locks_of_its_parent_in_memory() {
    a_child_is_inert("mem:", None);
}

#[test]
fn a_forked_child_neither_releases_nor_takes_locks_of_its_parent_through_a_server() {
    let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    a_child_is_inert(&format!("tcp://{}/forked", server.address()), Some(server));
}

#[test]
fn a_forked_child_neither_releases_nor_takes_locks_of_its_parent_in_a_one_sided_space() {
    let options = ServerOptions::default().listen("127.0.0.1:0".parse().unwrap()).lend("forked");
    let server = Server::start(options).unwrap();
    a_child_is_inert(&format!("tcp://{}/lent:forked", server.address()), Some(server));
}
