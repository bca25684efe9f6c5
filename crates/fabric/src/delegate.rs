//! [`delegate!`](crate::delegate!): methods of an endpoint that wraps another one and only call it.
//!
//! A wrapper changes a method or two. Written by hand, the others fill a page, and a forgotten one silently becomes the
//! trait's default.

/// Inside an `impl Endpoint`, implements the named methods by calling the endpoint in the given field.
///
/// ```
/// use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint};
/// use lockwright_fabric::{Capabilities, Endpoint, PeerId, delegate};
///
/// /// Cannot do more than eight bytes at a time.
/// #[derive(Clone)]
/// struct Narrow {
///     inner: InProcEndpoint,
/// }
///
/// impl Endpoint for Narrow {
///     delegate!(inner: me home go wait_until send send_datagram recv_by);
///     delegate!(inner: now passed alarm is_gone sleep suspects random mark checkpoint observe);
///
///     fn capabilities(&self) -> Capabilities {
///         Capabilities { wide: false, ..self.inner.capabilities() }
///     }
/// }
///
/// let narrow = Narrow { inner: InProc::new(1, 64).endpoint(PeerId::client(3)) };
/// assert_eq!(narrow.me(), PeerId::client(3));
/// ```
#[macro_export]
macro_rules! delegate {
    ($inner:tt: $($method:ident)+) => {
        $($crate::delegate!(@ $method $inner);)+
    };
    (@ me $inner:tt) => {
        #[inline(always)]
        fn me(&self) -> $crate::PeerId {
            self.$inner.me()
        }
    };
    (@ home $inner:tt) => {
        #[inline(always)]
        fn home(&self) -> Option<$crate::NodeId> {
            self.$inner.home()
        }
    };
    (@ capabilities $inner:tt) => {
        fn capabilities(&self) -> $crate::Capabilities {
            self.$inner.capabilities()
        }
    };
    (@ go $inner:tt) => {
        #[inline(always)]
        fn go<B: $crate::Batch>(
            &self,
            batch: B,
        ) -> impl Future<Output = Result<B::Old, $crate::FabricError>> {
            self.$inner.go(batch)
        }
    };
    (@ wait_until $inner:tt) => {
        fn wait_until<T: $crate::Value>(
            &self,
            wait: $crate::Wait<T>,
        ) -> impl Future<Output = Result<$crate::Waited<T>, $crate::FabricError>> {
            self.$inner.wait_until(wait)
        }
    };
    (@ send $inner:tt) => {
        fn send(
            &self,
            to: $crate::PeerId,
            message: $crate::Message,
        ) -> impl Future<Output = Result<(), $crate::FabricError>> {
            self.$inner.send(to, message)
        }
    };
    (@ send_datagram $inner:tt) => {
        fn send_datagram(
            &self,
            to: $crate::PeerId,
            message: $crate::Message,
        ) -> impl Future<Output = Result<(), $crate::FabricError>> {
            self.$inner.send_datagram(to, message)
        }
    };
    (@ recv_by $inner:tt) => {
        fn recv_by<T>(
            &self,
            deadline: $crate::Deadline,
            pick: impl FnMut($crate::PeerId, &$crate::Message) -> Option<T>,
        ) -> impl Future<Output = Option<T>> {
            self.$inner.recv_by(deadline, pick)
        }
    };
    (@ now $inner:tt) => {
        fn now(&self) -> impl Future<Output = $crate::Time> {
            self.$inner.now()
        }
    };
    (@ passed $inner:tt) => {
        fn passed(&self, deadline: $crate::Time) -> impl Future<Output = bool> {
            self.$inner.passed(deadline)
        }
    };
    (@ alarm $inner:tt) => {
        fn alarm(&self, deadline: $crate::Time) -> impl Future<Output = ()> {
            self.$inner.alarm(deadline)
        }
    };
    (@ is_gone $inner:tt) => {
        fn is_gone(&self, peer: $crate::PeerId) -> impl Future<Output = bool> {
            self.$inner.is_gone(peer)
        }
    };
    (@ sleep $inner:tt) => {
        fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
            self.$inner.sleep(ns)
        }
    };
    (@ suspects $inner:tt) => {
        fn suspects(&self, peer: $crate::PeerId) -> impl Future<Output = bool> {
            self.$inner.suspects(peer)
        }
    };
    (@ random $inner:tt) => {
        fn random(&self) -> u64 {
            self.$inner.random()
        }
    };
    (@ mark $inner:tt) => {
        #[inline(always)]
        fn mark(&self, label: &'static str, locals: &[u64]) {
            self.$inner.mark(label, locals);
        }
    };
    (@ checkpoint $inner:tt) => {
        #[inline(always)]
        fn checkpoint(&self, label: &'static str, locals: &[u64]) {
            self.$inner.checkpoint(label, locals);
        }
    };
    (@ observe $inner:tt) => {
        #[inline(always)]
        fn observe(&self, observation: $crate::observe::Observation) {
            self.$inner.observe(observation);
        }
    };
}
