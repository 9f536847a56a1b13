//! Which keys a query sees: causal masks, windows, tail masks, and indices that name no key.

use core::ops::Range;

use super::{Problem, TailMask};

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

    /// The query positions of sequence `b` that have a key among their [`visible`](Self::visible) ones.
    pub(crate) fn viewers(&self, b: usize) -> impl Fn(usize) -> Range<usize> + use<> {
        let (len, queries) = (self.len(b), self.queries(b));
        let (causal, window) = (self.causal, self.window);
        move |k| {
            // The position whose own key it is; the last one's is the last.
            let own = |k: usize| k.saturating_add(queries).saturating_sub(len);
            let end = window.map_or(queries, |window| own(k.saturating_add(window)).min(queries));
            let start = if causal { own(k) } else { 0 };
            start.min(end)..end
        }
    }

    /// Whether some query position sees other keys than another, or no key of the cache at some index.
    pub(crate) const fn hides(&self) -> bool {
        self.causal || self.window.is_some() || self.tail_mask.is_some() || self.sparse.is_some()
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
        self.mask_row(mask, b, j)[i / 64] >> (i % 64) & 1 != 0
    }

    /// Whether [`shows`](Self::shows) is true of any of `keys`.
    pub(crate) fn shows_any(
        &self,
        b: usize,
        head: usize,
        j: usize,
        mut keys: Range<usize>,
    ) -> bool {
        let (None, Some(mask)) = (&self.sparse, &self.tail_mask) else {
            return keys.any(|k| self.shows(b, head, j, k));
        };
        // Bits of the mask, word by word.
        let bit = |k: usize| (k + mask.tail).saturating_sub(self.len(b));
        let (start, end) = (bit(keys.start), bit(keys.end));
        if start == 0 && !keys.is_empty() && keys.start + mask.tail < self.len(b) {
            return true;
        }
        let row = self.mask_row(mask, b, j);
        let upto = |i: usize| (1_u64 << (i % 64)) - 1;
        (start / 64..end.div_ceil(64)).any(|word| {
            let from = if word == start / 64 { upto(start) } else { 0 };
            let behind = if word == end / 64 { !upto(end) } else { 0 };
            row[word] & !from & !behind != 0
        })
    }

    /// The words of query position `j` of sequence `b`.
    fn mask_row<'m>(&self, mask: &TailMask<'m>, b: usize, j: usize) -> &'m [u64] {
        let words = mask.tail.div_ceil(64);
        let [request, token] = self.token(b, j);
        &mask.words[(request * self.shape.s_q + token) * words..][..words]
    }

    /// Whether query position `j` of sequence `b` sees any key of a KV head.
    pub(crate) fn sees_any(&self, b: usize, head: usize, j: usize) -> bool {
        let visible = self.visible(b, j);
        let before = self.shown_before(b).min(visible.end);
        visible.start < before
            || (before.max(visible.start)..visible.end).any(|k| self.shows(b, head, j, k))
    }
}
