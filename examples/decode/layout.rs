//! How a file lays out queries and keys: dense, ragged or paged, whole or in parts.

use crate::case::Table;
use crate::tensors::{Named, Tensors, missing};

/// A tensor of queries or keys, whole or in two parts.
pub struct Parts<'a> {
    pub first: Named<'a>,
    /// The columns from `d_v` on, if they are apart.
    pub rope: Option<Named<'a>>,
}

impl<'a> Parts<'a> {
    /// # Errors
    /// Neither the whole nor both parts are there, or too much.
    pub fn of(file: &mut Tensors<'a>, names: [&str; 3]) -> Result<Self, String> {
        let exclusive = |a: &Named, b: &Named| Err(format!("{a} and {b} exclude each other"));
        let [whole, first, rope] = names.map(|name| file.input(name));
        match [whole?, first?, rope?] {
            [Some(first), None, None] => Ok(Self { first, rope: None }),
            [None, Some(first), Some(rope)] => Ok(Self {
                first,
                rope: Some(rope),
            }),
            [Some(whole), Some(part), _] | [Some(whole), None, Some(part)] => {
                exclusive(&whole, &part)
            }
            [None, Some(first), None] => Err(missing(names[2], &first)),
            [None, None, Some(rope)] => Err(missing(names[1], &rope)),
            [None, None, None] => {
                let [whole, first, rope] = names;
                Err(format!(
                    "there is no tensor {whole}, nor {first} and {rope}"
                ))
            }
        }
    }

    /// The first part's shape, which isn't `sizes` and a width.
    fn misfit(&self, sizes: &[&str]) -> String {
        let width = if self.rope.is_some() { "d_v" } else { "d_qk" };
        let forms = sizes.iter().map(|sizes| format!("[{sizes}, {width}]"));
        self.first.misfit(forms.collect::<Vec<_>>().join(" or "))
    }
}

pub struct Queries {
    pub b: usize,
    /// Most positions of a request.
    pub s_q: usize,
    /// `[b, s_q, h_q]` or `[1, tokens, h_q]`
    pub rows: [usize; 3],
    pub indptr: Option<Vec<i32>>,
}

impl Queries {
    /// # Errors
    /// What does not fit.
    pub fn of(file: &mut Tensors, q: &Parts) -> Result<Self, String> {
        let shape = q.first.shape();
        let Some(indptr) = file.optional("q_indptr") else {
            let &[b, s_q, h_q, _] = shape else {
                return Err(q.misfit(&["b, s_q, h_q"]));
            };
            return Ok(Self {
                b,
                s_q,
                rows: [b, s_q, h_q],
                indptr: None,
            });
        };
        let &[tokens, h_q, _] = shape else {
            return Err(q.misfit(&["tokens, h_q"]));
        };
        let offsets = Offsets::of(&indptr)?;
        // Each row of the outputs is somebody's.
        if offsets.first != 0 || !usize::try_from(offsets.last).is_ok_and(|last| last == tokens) {
            return Err(format!(
                "{indptr} runs from {} to {}, not over {}",
                offsets.first, offsets.last, q.first
            ));
        }
        Ok(Self {
            b: offsets.values.len() - 1,
            // The library wants a position, even if nobody has one.
            s_q: offsets.longest.max(1),
            rows: [1, tokens, h_q],
            indptr: Some(offsets.values),
        })
    }

    /// `[b, s_q]` or `[tokens]`: what tensors of queries begin with.
    pub fn lead(&self) -> &[usize] {
        &self.rows[usize::from(self.indptr.is_some())..2]
    }
}

pub struct Keys {
    /// Most keys of a request.
    pub s_k: usize,
    /// `[b, s_k, h_kv]`, `[1, tokens, h_kv]` or `[pages, page_size, h_kv]`
    pub rows: [usize; 3],
    pub pages: Option<Table>,
    pub indptr: Option<Vec<i32>>,
}

impl Keys {
    /// The layout of keys; `sparse` if queries choose theirs by their places.
    ///
    /// # Errors
    /// What does not fit.
    pub fn of(file: &mut Tensors, kv: &Parts, b: usize, sparse: bool) -> Result<Self, String> {
        let shape = kv.first.shape();
        let paged = || {
            pages(&kv.first, || {
                kv.misfit(&["pages, page_size", "pages, page_size, h_kv"])
            })
        };
        let indptr = file.optional("kv_indptr");
        // Places are in the cache itself then, as FlashMLA has it, and no table counts.
        let placed = sparse && indptr.is_none();
        let table = (!placed).then(|| file.optional("block_table")).flatten();
        match (table, indptr) {
            (Some(table), Some(indptr)) => Err(format!("{table} and {indptr} exclude each other")),
            (Some(table), None) => {
                let rows = paged()?;
                let &[_, max_blocks] = table.shape() else {
                    return Err(table.misfit("[b, max_blocks]"));
                };
                table.expect(&[b, max_blocks])?;
                Ok(Self::paged(rows, max_blocks, table.i32s()?))
            }
            (None, None) if placed => {
                let keys = Self::paged(paged()?, 0, Vec::new());
                let [pages, page_size, _] = keys.rows;
                Ok(Self {
                    s_k: pages.saturating_mul(page_size),
                    ..keys
                })
            }
            (None, Some(indptr)) => {
                let (&[tokens], h_kv) =
                    heads(shape).ok_or_else(|| kv.misfit(&["tokens", "tokens, h_kv"]))?;
                let offsets = Offsets::of(&indptr)?;
                indptr.expect(&[b.saturating_add(1)])?;
                if !usize::try_from(offsets.last).is_ok_and(|last| last <= tokens) {
                    let last = offsets.last;
                    return Err(format!("{indptr} runs to {last}, {} does not", kv.first));
                }
                Ok(Self {
                    s_k: offsets.longest,
                    rows: [1, tokens, h_kv],
                    pages: None,
                    indptr: Some(offsets.values),
                })
            }
            (None, None) => {
                let (&[_, s_k], h_kv) =
                    heads(shape).ok_or_else(|| kv.misfit(&["b, s_k", "b, s_k, h_kv"]))?;
                kv.first.expect(&[&[b], &shape[1..]].concat())?;
                Ok(Self {
                    s_k,
                    rows: [b, s_k, h_kv],
                    pages: None,
                    indptr: None,
                })
            }
        }
    }

    /// Pages, and where they are, `[b, max_blocks]`.
    fn paged(rows: [usize; 3], max_blocks: usize, entries: Vec<i32>) -> Self {
        let [pages, page_size, _] = rows;
        Self {
            s_k: max_blocks.saturating_mul(page_size),
            rows,
            pages: Some(Table {
                entries,
                max_blocks,
                page_size,
                pages,
            }),
            indptr: None,
        }
    }
}

/// `[pages, page_size, h_kv]` of a paged cache.
///
/// # Errors
/// `misfit`, or pages of no keys.
pub fn pages(kv: &Named, misfit: impl FnOnce() -> String) -> Result<[usize; 3], String> {
    let (&[pages, page_size], h_kv) = heads(kv.shape()).ok_or_else(misfit)?;
    if page_size == 0 {
        return Err(format!("{kv} has a page size of 0"));
    }
    Ok([pages, page_size, h_kv])
}

/// The first `N` sizes, and that of the heads if a dimension of them comes next.
fn heads<const N: usize>(shape: &[usize]) -> Option<(&[usize; N], usize)> {
    match shape.split_first_chunk()? {
        (first, [_]) => Some((first, 1)),
        (first, &[h_kv, _]) => Some((first, h_kv)),
        _ => None,
    }
}

/// Offsets and their extremes.
struct Offsets {
    first: i32,
    last: i32,
    /// Most rows of a request.
    longest: usize,
    values: Vec<i32>,
}

impl Offsets {
    fn of(tensor: &Named) -> Result<Self, String> {
        let values = match tensor.shape() {
            &[n] if n > 0 => tensor.i32s()?,
            _ => return Err(tensor.misfit("[b + 1]")),
        };
        // Below 0 and falling are for the library to find.
        let rows = |ends: &[i32]| usize::try_from(ends[1].max(0) - ends[0].max(0));
        Ok(Self {
            first: values[0],
            last: values[values.len() - 1],
            longest: values.windows(2).flat_map(rows).max().unwrap_or_default(),
            values,
        })
    }
}
