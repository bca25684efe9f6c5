//! Broken backends, which the conformance suite must catch. They run on one thread, so they fail every time.

mod rigs;

use lockwright_fabric::backend::inproc::InProcEndpoint;
use lockwright_fabric::conformance::{Shape, history::Violation, storm};
use lockwright_fabric::{Batch, Endpoint, FabricError, MaskedCas, Olds, Op, RawVerb};
use rigs::OneThread;
use std::task::Poll;

/// What is wrong with a backend.
trait Flaw: Clone + 'static {
    async fn execute(ep: &InProcEndpoint, verb: RawVerb) -> u128;
}

async fn go(ep: &InProcEndpoint, verb: RawVerb) -> u128 {
    ep.go(&[verb][..]).await.expect("the node is alive")[0]
}

/// Nothing.
#[derive(Clone)]
struct Sound;

impl Flaw for Sound {
    async fn execute(ep: &InProcEndpoint, verb: RawVerb) -> u128 {
        let old = go(ep, verb).await;
        step_aside().await;
        old
    }
}

/// The carry of a masked add runs on into the next field.
#[derive(Clone)]
struct Carries;

impl Flaw for Carries {
    async fn execute(ep: &InProcEndpoint, mut verb: RawVerb) -> u128 {
        if let Op::MaskedFetchAdd(fields) = verb.op {
            verb.op = Op::FetchAdd(fields.add);
        }
        Sound::execute(ep, verb).await
    }
}

/// A read-modify-write is a read and, later, a write.
#[derive(Clone)]
struct Tears;

impl Flaw for Tears {
    async fn execute(ep: &InProcEndpoint, verb: RawVerb) -> u128 {
        if !verb.op.is_atomic() {
            return Sound::execute(ep, verb).await;
        }
        let old = go(ep, RawVerb { op: Op::Read, ..verb }).await;
        step_aside().await;
        if let Some(new) = verb.op.apply(verb.width, old) {
            go(ep, RawVerb { op: Op::Write(new), ..verb }).await;
        }
        old
    }
}

/// A failed masked compare-and-swap returns only the bits it compared.
#[derive(Clone)]
struct Hides;

impl Flaw for Hides {
    async fn execute(ep: &InProcEndpoint, verb: RawVerb) -> u128 {
        let old = Sound::execute(ep, verb).await;
        match verb.op {
            Op::MaskedCas(MaskedCas { compare_mask, .. }) if verb.op.apply(verb.width, old).is_none() => {
                old & compare_mask
            }
            _ => old,
        }
    }
}

/// Lets another client run.
async fn step_aside() {
    let mut stepped = false;
    std::future::poll_fn(
        |_| {
            if std::mem::replace(&mut stepped, true) { Poll::Ready(()) } else { Poll::Pending }
        },
    )
    .await;
}

#[derive(Clone)]
struct Broken<F> {
    ep: InProcEndpoint,
    flaw: std::marker::PhantomData<F>,
}

impl<F: Flaw> Endpoint for Broken<F> {
    lockwright_fabric::delegate!(ep: me capabilities wait_until send send_datagram recv_by now sleep random);

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let mut verbs = Vec::new();
        batch.each(&mut |verb| {
            verbs.push(verb);
            0
        });
        let mut olds = Olds::new();
        for verb in verbs {
            olds.push(F::execute(&self.ep, verb).await);
        }
        let mut olds = olds.into_iter();
        Ok(batch.each(&mut |_| olds.next().expect("one for every verb")))
    }
}

fn make<F: Flaw>(shape: Shape) -> OneThread<Broken<F>> {
    OneThread::new(shape, 7, |ep| Broken { ep, flaw: std::marker::PhantomData })
}

/// What the checker says of each word, at both widths.
fn judge<F: Flaw>() -> Vec<Result<(), Violation>> {
    let narrow = storm::blow::<_, u64>(&make::<F>, storm::Storm::default());
    let wide = storm::blow::<_, u128>(&make::<F>, storm::Storm::default());
    narrow.iter().chain(&wide).map(|history| history.check()).collect()
}

#[test]
fn a_sound_backend_passes() {
    assert_eq!(judge::<Sound>(), vec![Ok(()); 6]);
    storm::fields_keep_their_sums(&make::<Sound>);
    storm::peterson_keeps_two_clients_apart(&make::<Sound>);
}

#[test]
fn a_carry_that_leaves_its_field_is_caught() {
    assert!(judge::<Carries>().iter().all(Result::is_err));
}

#[test]
#[should_panic(expected = "Field")]
fn a_carry_that_leaves_its_field_spoils_the_sums() {
    storm::fields_keep_their_sums(&make::<Carries>);
}

#[test]
fn a_torn_read_modify_write_is_caught() {
    assert!(judge::<Tears>().iter().all(Result::is_err));
}

#[test]
#[should_panic(expected = "Field")]
fn a_torn_read_modify_write_spoils_the_sums() {
    storm::fields_keep_their_sums(&make::<Tears>);
}

#[test]
fn an_old_value_that_is_not_whole_is_caught() {
    assert!(judge::<Hides>().iter().all(Result::is_err));
}
