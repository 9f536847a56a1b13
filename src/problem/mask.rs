//! Which keys a query sees: causal masks, windows, tail masks, and indices that name no key.

use core::ops::Range;

use super::Problem;

impl Problem<'_> {
    /// The keys that query position `j` of sequence `b` sees, and those that [`shows`](Self::shows)
    /// hides among them.
    pub(crate) fn visible(&self, b: usize, j: usize) -> Range<usize> {
        let len = self.len(b);
        // One more than the position's own key.
        let end = (len + j + 1).saturating_sub(self.queries(b));
        let start = self.window.map_or(0, |window| end.saturating_sub(window));
        let end = if self.causal { end } else { len };
        start.min(end)..end
    }

    /// The keys that any query of sequence `b` may see.
    pub(crate) fn span(&self, b: usize) -> Range<usize> {
        let len = self.len(b);
        if self.window.is_none() {
            return 0..len;
        }
        // The first position's window begins first.
        self.visible(b, 0).start.min(len)..len
    }

    /// Whether query position `j` of sequence `b` sees key `k` of a KV head.
    pub(crate) fn sees(&self, b: usize, head: usize, j: usize, k: usize) -> bool {
        self.visible(b, j).contains(&k) && self.shows(b, head, j, k)
    }

    /// The first key for which [`shows`](Self::shows) may be false.
    pub(crate) fn shown_before(&self, b: usize) -> usize {
        match (&self.sparse, &self.tail_mask) {
            (Some(_), _) => 0,
            (None, Some(mask)) => self.len(b).saturating_sub(mask.tail),
            (None, None) => self.len(b),
        }
    }

    /// Whether a [`visible`](Self::visible) key is seen: the tail mask doesn't hide it, and its index
    /// names a key of the cache.
    pub(crate) fn shows(&self, b: usize, head: usize, j: usize, k: usize) -> bool {
        if self.sparse.is_some() {
            return self.chosen(b, head, k).is_some();
        }
        let Some(mask) = &self.tail_mask else {
            return true;
        };
        // Below 0 for the keys before the tail.
        let Some(i) = (k + mask.tail).checked_sub(self.len(b)) else {
            return true;
        };
        let words = mask.tail.div_ceil(64);
        let [request, token] = self.token(b, j);
        let row = request * self.shape.s_q + token;
        mask.words[row * words + i / 64] >> (i % 64) & 1 != 0
    }

    /// Whether query position `j` of sequence `b` sees any key of a KV head.
    pub(crate) fn sees_any(&self, b: usize, head: usize, j: usize) -> bool {
        let visible = self.visible(b, j);
        let before = self.shown_before(b).min(visible.end);
        visible.start < before
            || (before.max(visible.start)..visible.end).any(|k| self.shows(b, head, j, k))
    }
}
