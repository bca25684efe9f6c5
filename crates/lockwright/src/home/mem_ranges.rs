//! Range locks between threads: a list of who holds what, and a queue.

use lockwright_fabric::observe::Claim;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// All ranges of a space. A request keeps its number from the first poll to its release.
#[derive(Debug, Default)]
pub(crate) struct MemRanges {
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    /// In order of their numbers: whoever comes first is served first.
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    number: u64,
    claim: Claim,
    held: bool,
    waker: Option<Waker>,
}

impl Book {
    /// Whether an earlier request, held or not, conflicts.
    fn is_blocked(&self, number: u64, claim: &Claim) -> bool {
        self.requests.iter().any(|other| {
            (other.held || other.number < number) && other.number != number && other.claim.conflicts(claim)
        })
    }
}

impl MemRanges {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a range if it is free; its number is its token.
    pub(crate) fn try_acquire(&self, claim: Claim) -> Option<u64> {
        let mut book = self.book();
        let number = book.next + 1;
        if book.is_blocked(number, &claim) {
            return None;
        }
        book.next = number;
        book.requests.push(Request { number, claim, held: true, waker: None });
        Some(number)
    }

    /// Takes a range, however long it takes.
    pub(crate) async fn acquire(self: Arc<Self>, claim: Claim) -> u64 {
        let number = {
            let mut book = self.book();
            book.next += 1;
            let number = book.next;
            book.requests.push(Request { number, claim, held: false, waker: None });
            number
        };
        std::future::poll_fn(|cx| self.poll(number, &claim, cx)).await
    }

    /// Looks whether it is this request's turn. Tokens must rise in the order of grants, so it gets a new number.
    fn poll(&self, number: u64, claim: &Claim, cx: &Context<'_>) -> Poll<u64> {
        let mut book = self.book();
        let blocked = book.is_blocked(number, claim);
        let token = book.next + 1;
        let request = book.requests.iter_mut().find(|request| request.number == number);
        let request = request.expect("a request stays until it is released");
        if blocked {
            request.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        (request.number, request.held, request.waker) = (token, true, None);
        book.next = token;
        Poll::Ready(token)
    }

    /// Gives a range back.
    pub(crate) fn release(&self, number: u64) {
        let mut book = self.book();
        book.requests.retain(|request| request.number != number);
        let wakers: Vec<_> = book.requests.iter_mut().filter_map(|request| request.waker.take()).collect();
        drop(book);
        wakers.into_iter().for_each(Waker::wake);
    }
}
