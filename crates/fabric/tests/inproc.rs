//! The in-process backend under the conformance suite: its clients as threads, as tasks of one thread, and with counting
//! around it, which must change nothing.

mod rigs;

mod threads {
    use crate::rigs::Threads;
    lockwright_fabric::conformance_tests!(|shape| Threads::new(shape, |ep| ep));
}

mod one_thread {
    use crate::rigs::OneThread;
    lockwright_fabric::conformance_tests!(|shape| OneThread::new(shape, 1, |ep| ep));
}

mod counted {
    use crate::rigs::Threads;
    use lockwright_fabric::count::Counted;

    lockwright_fabric::conformance_tests!(|shape| Threads::new(shape, Counted::new));
}
