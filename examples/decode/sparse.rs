//! Sparse attention: the keys of each query position by their places.

use amla::{Extra, Indices, Sparse};

use crate::layout::{Queries, pages};
use crate::stored::Stored;
use crate::tensors::{Named, Tensors, missing};

/// Places of keys, `[b, s_q, topk]`.
pub struct Places {
    entries: Vec<i32>,
    s_q: usize,
    topk: usize,
    lengths: Option<Vec<i32>>,
}

impl Places {
    /// Places, and how many of them count, if a file has tensors of these names.
    ///
    /// # Errors
    /// What is missing or does not fit.
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
            indices: &self.entries,
            strides: [self.s_q.saturating_mul(self.topk), self.topk],
            topk: self.topk,
            topk_length: self.lengths.as_deref(),
        }
    }

    /// How many of a query position's places there are in a cache of so many keys.
    fn within(&self, [b, j]: [usize; 2], keys: usize) -> usize {
        let len = self.lengths.as_ref().map_or(self.topk, |lengths| {
            usize::try_from(lengths[b]).unwrap_or_default()
        });
        let places = &self.entries[(b * self.s_q + j) * self.topk..][..len];
        let valid = |&&place: &&i32| usize::try_from(place).is_ok_and(|place| place < keys);
        places.iter().filter(valid).count()
    }
}

/// The keys that queries attend to.
pub struct Chosen {
    places: Places,
    extra: Option<SecondCache>,
}

struct SecondCache {
    /// Its dimensions are pages, keys of each, and heads.
    kv: Stored,
    places: Places,
}

impl Chosen {
    /// Adds the second cache, if there is one, for so many KV heads and columns.
    ///
    /// # Errors
    /// What is missing or does not fit.
    pub fn of(
        file: &mut Tensors,
        places: Option<Places>,
        queries: &Queries,
        h_kv: usize,
        d_qk: usize,
    ) -> Result<Option<Self>, String> {
        let names = ["extra_indices", "extra_topk_length"];
        let kv = file.input("extra_kv")?;
        let extra = match (kv, Places::of(file, names, queries)?) {
            (None, None) => None,
            (Some(kv), None) => return Err(missing(names[0], &kv)),
            (None, Some(_)) => return Err(missing("extra_kv", names[0])),
            (Some(kv), Some(places)) => Some(SecondCache::of(file, &kv, places, h_kv, d_qk)?),
        };
        match (places, extra) {
            (Some(places), extra) => Ok(Some(Self { places, extra })),
            (None, Some(_)) => Err(missing("indices", "extra_kv")),
            (None, None) => Ok(None),
        }
    }

    /// As the library has it.
    pub fn sparse(&self) -> Sparse<'_> {
        Sparse {
            indices: self.places.indices(),
            extra: self.extra.as_ref().map(|SecondCache { kv, places }| Extra {
                kv: kv.tensor(),
                pages: kv.dims[0],
                page_size: kv.dims[1],
                indices: places.indices(),
            }),
        }
    }

    /// How many keys a query position, `[request, position]`, sees, if the first cache
    /// has so many for it. Of a problem that was checked.
    pub fn seen(&self, at: [usize; 2], keys: usize) -> usize {
        let extra = self.extra.as_ref().map_or(0, |SecondCache { kv, places }| {
            let [pages, page_size, _] = kv.dims;
            places.within(at, pages * page_size)
        });
        self.places.within(at, keys) + extra
    }
}

impl SecondCache {
    fn of(
        file: &mut Tensors,
        kv: &Named,
        places: Places,
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
            places,
        })
    }
}
