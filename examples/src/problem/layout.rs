//! The layout of queries and keys: dense, ragged or paged; one tensor, or latent and rotary parts.

use super::tensors::{Named, Tensors, missing};

/// A tensor of queries or keys, or its two parts.
pub struct Parts<'a> {
    /// The tensor, or its first `d_v` columns.
    pub first: Named<'a>,
    /// The columns from `d_v` on, if they are a tensor of their own.
    pub rope: Option<Named<'a>>,
}

impl<'a> Parts<'a> {
    /// The tensors of these names: all columns, the first `d_v`, the others.
    ///
    /// # Errors
    /// The file has neither the first nor both others, or too many of them.
    pub fn of(file: &mut Tensors<'a>, names: [&str; 3]) -> Result<Self, String> {
        let exclusive = |a: &Named, b: &Named| Err(format!("{a} and {b} exclude each other"));
        let [all, first, rope] = names.map(|name| file.input(name));
        match [all?, first?, rope?] {
            [Some(first), None, None] => Ok(Self { first, rope: None }),
            [None, Some(first), Some(rope)] => Ok(Self {
                first,
                rope: Some(rope),
            }),
            [Some(all), Some(part), _] | [Some(all), None, Some(part)] => exclusive(&all, &part),
            [None, Some(first), None] => Err(missing(names[2], &first)),
            [None, None, Some(rope)] => Err(missing(names[1], &rope)),
            [None, None, None] => {
                let [all, first, rope] = names;
                Err(format!("there is no tensor {all}, nor {first} and {rope}"))
            }
        }
    }

    /// The error that the first part's shape isn't one of `sizes` and a width.
    fn misfit(&self, sizes: &[&str]) -> String {
        let width = if self.rope.is_some() { "d_v" } else { "d_qk" };
        let forms = sizes.iter().map(|sizes| format!("[{sizes}, {width}]"));
        self.first.misfit(forms.collect::<Vec<_>>().join(" or "))
    }
}

/// Sizes of the queries.
pub struct Queries {
    pub b: usize,
    /// The most positions of a request.
    pub s_q: usize,
    /// `[b, s_q, h_q]` or `[1, tokens, h_q]`
    pub rows: [usize; 3],
    pub indptr: Option<Vec<i32>>,
}

impl Queries {
    /// # Errors
    /// A tensor does not fit.
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
        // Each row of the outputs belongs to a request.
        if offsets.first != 0 || !usize::try_from(offsets.last).is_ok_and(|last| last == tokens) {
            return Err(format!(
                "{indptr} runs from {} to {}, not over {}",
                offsets.first, offsets.last, q.first
            ));
        }
        Ok(Self {
            b: offsets.values.len() - 1,
            // The library requires a position, even if no request has one.
            s_q: offsets.longest.max(1),
            rows: [1, tokens, h_q],
            indptr: Some(offsets.values),
        })
    }

    /// `[b, s_q]` or `[tokens]`: the first dimensions of tensors of queries.
    pub fn lead(&self) -> &[usize] {
        &self.rows[usize::from(self.indptr.is_some())..2]
    }
}

/// A block table, `[b, max_blocks]`; empty for sparse attention, whose indices count slots of pages.
pub struct Table {
    pub entries: Vec<i32>,
    pub max_blocks: usize,
    pub page_size: usize,
    pub pages: usize,
}

/// Sizes and offsets of the keys.
pub struct Keys {
    /// The most keys of a request.
    pub s_k: usize,
    /// `[b, s_k, h_kv]`, `[1, tokens, h_kv]` or `[pages, page_size, h_kv]`
    pub rows: [usize; 3],
    pub pages: Option<Table>,
    pub indptr: Option<Vec<i32>>,
}

impl Keys {
    /// The layout of keys; `sparse` if queries select keys by index.
    ///
    /// # Errors
    /// A tensor does not fit.
    pub fn of(file: &mut Tensors, kv: &Parts, b: usize, sparse: bool) -> Result<Self, String> {
        let shape = kv.first.shape();
        let paged = || {
            pages(&kv.first, || {
                kv.misfit(&["pages, page_size", "pages, page_size, h_kv"])
            })
        };
        let indptr = file.optional("kv_indptr");
        // Indices then count slots of the cache itself, as FlashMLA's do; a block table has no use.
        let by_slot = sparse && indptr.is_none();
        let table = (!by_slot).then(|| file.optional("block_table")).flatten();
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
            (None, None) if by_slot => {
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

    /// Pages, and a block table, `[b, max_blocks]`.
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
/// `misfit`, or pages have no keys.
pub fn pages(kv: &Named, misfit: impl FnOnce() -> String) -> Result<[usize; 3], String> {
    let (&[pages, page_size], h_kv) = heads(kv.shape()).ok_or_else(misfit)?;
    if page_size == 0 {
        return Err(format!("{kv} has a page size of 0"));
    }
    Ok([pages, page_size, h_kv])
}

/// The first `N` sizes, and the number of heads, which is 1 without a dimension of heads.
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
    /// The most rows of a request.
    longest: usize,
    values: Vec<i32>,
}

impl Offsets {
    fn of(tensor: &Named) -> Result<Self, String> {
        let values = match tensor.shape() {
            &[n] if n > 0 => tensor.i32s()?,
            _ => return Err(tensor.misfit("[b + 1]")),
        };
        // The library refuses offsets below 0 and falling ones.
        let rows = |ends: &[i32]| usize::try_from(ends[1].max(0) - ends[0].max(0));
        Ok(Self {
            first: values[0],
            last: values[values.len() - 1],
            longest: values.windows(2).flat_map(rows).max().unwrap_or_default(),
            values,
        })
    }
}
