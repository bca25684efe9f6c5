//! Waiting for requests below that were there first (Citron Alg. 2 lines 35, 36; the last part of phase (d)).
//!
//! A request at an internal node looks at itself and its internal descendants within m levels. Each of them that once
//! shows DCnt = DMax is done with: a client that comes below it later sees the request above and waits, or holds something
//! below already, whose note is one of those waited for.

use super::acquire::Request;
use super::recover::End;
use super::shape::Node;
use super::{CitronClient, Rules};
use arrayvec::ArrayVec;
use lockwright_fabric::{Endpoint, FabricError, MAX_BATCH};

/// Nodes where notes were seen.
#[derive(Debug, Default)]
pub(super) struct Below {
    pub(super) busy: ArrayVec<Node, { MAX_BATCH + 1 }>,
}

impl Below {
    /// Takes note of a word of `node`.
    pub(super) fn note<R: Rules>(&mut self, request: &Request, node: Node, word: u64) {
        if !request.quiet_below::<R>().holds(word.into()) {
            self.busy.push(node);
        }
    }

    /// Whether nobody is below.
    pub(super) fn is_quiet(&self) -> bool {
        self.busy.is_empty()
    }
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// Waits for all notes at the nodes of `below`, as long as the request is ready to.
    pub(super) async fn wait_for_all(&self, request: &Request, below: &Below) -> Result<End, FabricError> {
        for node in &below.busy {
            let end = self.wait_below(request, *node).await?;
            if end != End::Met {
                return Ok(end);
            }
        }
        Ok(End::Met)
    }

    /// Reads the whole window of `node` and waits for the notes there.
    pub(super) async fn wait_for_window(&self, request: &Request, node: Node) -> Result<End, FabricError> {
        let tree = &request.tree;
        let mut window = tree.window(node).peekable();
        while window.peek().is_some() {
            let nodes: ArrayVec<Node, MAX_BATCH> = window.by_ref().take(MAX_BATCH).collect();
            let reads: ArrayVec<_, MAX_BATCH> =
                nodes.iter().map(|node| tree.word(*node).read().raw()).collect();
            let olds = self.ep.go(reads.as_slice()).await?;
            let mut below = Below::default();
            nodes.iter().zip(&olds).for_each(|(node, old)| below.note::<R>(request, *node, *old as u64));
            let end = self.wait_for_all(request, &below).await?;
            if end != End::Met {
                return Ok(end);
            }
        }
        Ok(End::Met)
    }
}
