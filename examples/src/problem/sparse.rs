//! Sparse attention: the keys of each query position by index.

use amla::{Extra, IndexList, Indices, Sparse};

use super::layout::{Queries, pages};
use super::stored::Stored;
use super::tensors::{Named, Tensors, missing};

/// Indices of keys, `[b, s_q, topk]`.
pub struct TopK {
    entries: Vec<i32>,
    s_q: usize,
    topk: usize,
    lengths: Option<Vec<i32>>,
}

impl TopK {
    /// Indices and the number of valid ones, from a file's tensors of these names.
    ///
    /// # Errors
    /// A tensor is missing or does not fit.
    pub fn of(
        file: &mut Tensors,
        names: [&str; 2],
        queries: &Queries,
    ) -> Result<Option<Self>, String> {
        let [indices, lengths] = names.map(|name| file.optional(name));
        let Some(indices) = indices else {
            return lengths.map_or(Ok(None), |lengths| Err(missing(names[0], &lengths)));
        };
        let topk = indices.width();
        indices.expect(&[queries.lead(), &[topk]].concat())?;
        if let Some(lengths) = &lengths {
            lengths.expect(&[queries.b])?;
        }
        Ok(Some(Self {
            entries: indices.i32s()?,
            s_q: queries.s_q,
            topk,
            lengths: lengths.map(|lengths| lengths.i32s()).transpose()?,
        }))
    }

    fn indices(&self) -> Indices<'_> {
        Indices {
            indices: IndexList::I32(&self.entries),
            strides: [self.s_q.saturating_mul(self.topk), self.topk, 0],
            topk: self.topk,
            topk_length: self.lengths.as_deref(),
            topk_length_strides: [1, 0],
        }
    }

    /// The number of a query position's indices that are valid in a cache of `keys` keys.
    fn within(&self, [b, j]: [usize; 2], keys: usize) -> usize {
        let len = self.lengths.as_ref().map_or(self.topk, |lengths| {
            usize::try_from(lengths[b]).unwrap_or_default()
        });
        let indices = &self.entries[(b * self.s_q + j) * self.topk..][..len];
        let valid = |&&index: &&i32| usize::try_from(index).is_ok_and(|index| index < keys);
        indices.iter().filter(valid).count()
    }
}

/// The keys that queries attend to.
pub struct SparseKeys {
    topk: TopK,
    extra: Option<SecondCache>,
}

struct SecondCache {
    /// Its dimensions are pages, keys of each, and heads.
    kv: Stored,
    topk: TopK,
}

impl SparseKeys {
    /// Adds the second cache, if the file has one, of `h_kv` KV heads and `d_qk` columns.
    ///
    /// # Errors
    /// A tensor is missing or does not fit.
    pub fn of(
        file: &mut Tensors,
        topk: Option<TopK>,
        queries: &Queries,
        h_kv: usize,
        d_qk: usize,
    ) -> Result<Option<Self>, String> {
        let names = ["extra_indices", "extra_topk_length"];
        let kv = file.input("extra_kv")?;
        let extra = match (kv, TopK::of(file, names, queries)?) {
            (None, None) => None,
            (Some(kv), None) => return Err(missing(names[0], &kv)),
            (None, Some(_)) => return Err(missing("extra_kv", names[0])),
            (Some(kv), Some(topk)) => Some(SecondCache::of(file, &kv, topk, h_kv, d_qk)?),
        };
        match (topk, extra) {
            (Some(topk), extra) => Ok(Some(Self { topk, extra })),
            (None, Some(_)) => Err(missing("indices", "extra_kv")),
            (None, None) => Ok(None),
        }
    }

    /// The library's view.
    pub fn sparse(&self) -> Sparse<'_> {
        Sparse {
            indices: self.topk.indices(),
            extra: self.extra.as_ref().map(|SecondCache { kv, topk }| Extra {
                kv: kv.tensor(),
                pages: kv.dims[0],
                page_size: kv.dims[1],
                indices: topk.indices(),
            }),
        }
    }

    /// The number of keys that a query position, `[request, position]`, sees, if the first cache has
    /// `keys` keys for it. The problem must be valid.
    pub fn seen(&self, at: [usize; 2], keys: usize) -> usize {
        let extra = self.extra.as_ref().map_or(0, |SecondCache { kv, topk }| {
            let [pages, page_size, _] = kv.dims;
            topk.within(at, pages * page_size)
        });
        self.topk.within(at, keys) + extra
    }
}

impl SecondCache {
    fn of(
        file: &mut Tensors,
        kv: &Named,
        topk: TopK,
        h_kv: usize,
        d_qk: usize,
    ) -> Result<Self, String> {
        let want = format!("[pages, page_size, {h_kv}, {d_qk}]");
        let dims = pages(kv, || kv.misfit(&want))?;
        if dims[2] != h_kv {
            return Err(kv.misfit(want));
        }
        kv.expect_like(kv, d_qk)?;
        Ok(Self {
            kv: file.stored(kv, dims)?,
            topk,
        })
    }
}
