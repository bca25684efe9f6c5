//! The in-process backend under the conformance suite: its clients as threads, as tasks of one thread, and
//! with all layers around it, which must change nothing.

mod rigs;

mod threads {
    use crate::rigs::Threads;
    lockwright_fabric::conformance_tests!(|shape| Threads::new(shape, |ep| ep));
}

mod one_thread {
    use crate::rigs::OneThread;
    lockwright_fabric::conformance_tests!(|shape| OneThread::new(shape, 1, |ep| ep));
}

mod layers {
    use crate::rigs::Threads;
    use lockwright_fabric::fault::FaultPlan;
    use lockwright_fabric::layer::{Counted, Faulty, Timeline, Traced};
    use std::sync::Arc;

    lockwright_fabric::conformance_tests!(|shape| {
        let timeline = Timeline::of(100);
        let plan = Arc::new(FaultPlan::default());
        Threads::new(shape, move |ep| {
            Counted::new(Traced::new(Faulty::new(ep, plan.clone(), 1), timeline.clone()))
        })
    });
}
