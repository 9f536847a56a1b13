//! One attention, described step by step: what most programs call.

use half::{bf16, f16};

use crate::attend::Options;
use crate::error::{Argument, Error, right_length};
use crate::format::{Data, Q4_0, Q8_0};
use crate::kernel::Backend;
use crate::problem::{
    Elements, Inputs, Output, Pages, Precision, Problem, Rescale, Sparse, TailMask, TensorRef,
};
use crate::run::decode;
use crate::schedule::Split;
use crate::shape::ProblemShape;
use crate::tile::Workspace;

/// Numbers, or blocks of them, that a tensor may have.
pub trait Input: Sized {
    /// As data of their format.
    fn data(elements: &[Self]) -> Data<'_>;
}

/// Numbers that O may have.
pub trait OutputNumber: Sized {
    /// As elements of their format.
    fn elements(numbers: &mut [Self]) -> Elements<'_>;
}

macro_rules! formats {
    ($trait:ident, $method:ident: $($type:ty => $variant:path),*) => {$(
        impl $trait for $type {
            formats!(@ $method $variant);
        }
    )*};
    (@ data $variant:path) => {
        fn data(elements: &[Self]) -> Data<'_> {
            $variant(elements)
        }
    };
    (@ elements $variant:path) => {
        fn elements(numbers: &mut [Self]) -> Elements<'_> {
            $variant(numbers)
        }
    };
}

formats!(Input, data: bf16 => Data::Bf16, f16 => Data::F16, f32 => Data::F32, Q8_0 => Data::Q8_0, Q4_0 => Data::Q4_0);
formats!(OutputNumber, elements: bf16 => Elements::Bf16, f16 => Elements::F16, f32 => Elements::F32);

/// A tensor to be read, as frameworks have them: four dimensions, the last contiguous.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    tensor: TensorRef<'a>,
    dims: [usize; 4],
}

impl<'a> TensorView<'a> {
    /// A contiguous tensor, `[b, s, h, d]`: requests, positions or keys, heads, columns. A paged cache has
    /// `[pages, page_size, h, d]`, a ragged tensor `[1, tokens, h, d]`.
    pub fn new<T: Input>(elements: &'a [T], dims: [usize; 4]) -> Self {
        Self::of(T::data(elements), dims)
    }

    /// The same of any format.
    #[must_use]
    pub fn of(data: Data<'a>, dims: [usize; 4]) -> Self {
        let [_, s, h, d] = dims;
        // A width that the format doesn't have is refused with the call.
        let head = data.row_len(d).unwrap_or(d);
        let token = head.saturating_mul(h);
        Self {
            tensor: TensorRef {
                data,
                strides: [token.saturating_mul(s), token, head],
            },
            dims,
        }
    }

    /// Other strides over the first three dimensions, in elements (bytes of FP8 rows, blocks of ggml's): 0 where a
    /// dimension is expanded, `[h * s * d, d, s * d]` for a tensor whose memory is `[b, h, s, d]`.
    #[must_use]
    pub fn strides(mut self, strides: [usize; 3]) -> Self {
        self.tensor.strides = strides;
        self
    }
}

/// `O = softmax(softmax_scale * Q K^T) V`, with what hides keys, and how it is computed.
///
/// Every method changes a part and returns the rest as it was; what doesn't fit is told when it is computed. O is dense,
/// `[b, s_q, h_q, d_v]`, lse dense, `[b, h_q, s_q]`. What isn't here, [`Problem`] has: strides of outputs, largest scores,
/// lse to base 2, plans.
///
/// ```
/// use amla::{Attention, TensorView, Workspace};
/// use half::bf16;
///
/// let q = vec![bf16::from_f32(0.5); 2 * 16 * 576];
/// let kv = vec![bf16::from_f32(0.25); 2 * 100 * 576];
/// let (q, kv) = (TensorView::new(&q, [2, 1, 16, 576]), TensorView::new(&kv, [2, 100, 1, 576]));
///
/// let mut workspace = Workspace::boxed();
/// let mut o = vec![0.0_f32; 2 * 16 * 512];
/// Attention::mla(q, kv, 1.0 / 24.0).decode(&mut workspace, &mut o)?;
/// assert!((o[0] - 0.25).abs() < 1e-6);
/// # Ok::<(), amla::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// But for sizes.
    problem: Problem<'a>,
    d_v: usize,
    q: [usize; 4],
    kv: [usize; 4],
    v: Option<[usize; 4]>,
    ropes: [Option<[usize; 4]>; 2],
    block_table: Option<&'a [i32]>,
    options: Options,
}

impl<'a> Attention<'a> {
    /// MLA over a latent cache, whose rows are keys and begin with the values. Its last 64 columns, the rotary part, aren't values,
    /// as in DeepSeek's models: 512 of 576 are. For others there is [`value_width`](Self::value_width).
    #[must_use]
    pub fn mla(q: TensorView<'a>, kv: TensorView<'a>, softmax_scale: f32) -> Self {
        const ROPE: usize = 64;
        let none = ProblemShape {
            b: 0,
            s_q: 0,
            s_k: 0,
            h_q: 0,
            h_kv: 0,
            d_qk: 0,
            d_v: 0,
        };
        Self {
            problem: Problem {
                q: q.tensor,
                kv: kv.tensor,
                ..Problem::dense(none, &[], &[], softmax_scale)
            },
            d_v: kv.dims[3].saturating_sub(ROPE),
            q: q.dims,
            kv: kv.dims,
            v: None,
            ropes: [None; 2],
            block_table: None,
            options: Options::default(),
        }
    }

    /// Attention with values of their own: MHA, GQA, MQA.
    #[must_use]
    pub fn new(
        q: TensorView<'a>,
        k: TensorView<'a>,
        v: TensorView<'a>,
        softmax_scale: f32,
    ) -> Self {
        let mut attention = Self::mla(q, k, softmax_scale);
        attention.problem.v = Some(v.tensor);
        attention.v = Some(v.dims);
        attention.d_v = v.dims[3];
        attention
    }

    /// How many columns of a latent cache's rows are values.
    #[must_use]
    pub fn value_width(mut self, d_v: usize) -> Self {
        self.d_v = d_v;
        self
    }

    /// At which column of a latent cache's rows the values begin: 64 for rows of `[rope | latent]`.
    #[must_use]
    pub fn value_offset(mut self, column: usize) -> Self {
        self.problem.v_offset = column;
        self
    }

    /// The rotary parts of queries and keys, where they are tensors of their own: the others have the latent columns alone, all of
    /// which are values.
    #[must_use]
    pub fn split_rope(mut self, q: TensorView<'a>, k: TensorView<'a>) -> Self {
        (self.problem.q_rope, self.problem.k_rope) = (Some(q.tensor), Some(k.tensor));
        self.ropes = [q, k].map(|view| Some(view.dims));
        if self.v.is_none() {
            self.d_v = self.kv[3];
        }
        self
    }

    /// Query `j` of `n` sees the first `len - (n - 1 - j)` keys of its request.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.problem.causal = true;
        self
    }

    /// How many keys a query sees, up to and with its own.
    #[must_use]
    pub fn window(mut self, keys: usize) -> Self {
        self.problem.window = Some(keys);
        self
    }

    /// Which of the last keys each query sees.
    #[must_use]
    pub fn tail_mask(mut self, mask: TailMask<'a>) -> Self {
        self.problem.tail_mask = Some(mask);
        self
    }

    /// How many keys each request has, `[b]`; all of them otherwise.
    #[must_use]
    pub fn lengths(mut self, cache_seqlens: &'a [i32]) -> Self {
        self.problem.cache_seqlens = Some(cache_seqlens);
        self
    }

    /// A paged cache: `block_table`, `[b, max_blocks]`, has the page of each request's first keys, of the next, and so on.
    #[must_use]
    pub fn paged(mut self, block_table: &'a [i32]) -> Self {
        self.block_table = Some(block_table);
        self
    }

    /// Ragged queries, `[1, tokens, h, d]`: where each request's begin, `[b + 1]`. O and lse are ragged as well.
    #[must_use]
    pub fn ragged_queries(mut self, indptr: &'a [i32]) -> Self {
        self.problem.q_indptr = Some(indptr);
        self
    }

    /// A ragged cache, `[1, tokens, h, d]`: where each request's keys begin, `[b + 1]`.
    #[must_use]
    pub fn ragged_keys(mut self, indptr: &'a [i32]) -> Self {
        self.problem.kv_indptr = Some(indptr);
        self
    }

    /// Each query attends to chosen keys.
    #[must_use]
    pub fn sparse(mut self, sparse: Sparse<'a>) -> Self {
        self.problem.sparse = Some(sparse);
        self
    }

    /// Attention sinks, `[h_q]`.
    #[must_use]
    pub fn sink(mut self, sink: &'a [f32]) -> Self {
        self.problem.sink = Some(sink);
        self
    }

    /// A backend other than the fastest.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.options.backend = backend;
        self
    }

    /// How P enters the second matrix product.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.options.precision = precision;
        self
    }

    /// Whether inputs may be rounded to BF16.
    #[must_use]
    pub fn inputs(mut self, inputs: Inputs) -> Self {
        self.options.inputs = inputs;
        self
    }

    /// How O follows the running maximum.
    #[must_use]
    pub fn rescale(mut self, rescale: Rescale) -> Self {
        self.options.rescale = rescale;
        self
    }

    /// How keys are cut into ranges that threads compute in parallel.
    #[must_use]
    pub fn split(mut self, split: Split) -> Self {
        self.problem.split = split;
        self
    }

    /// How it is computed.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The same as a problem, with its sizes.
    ///
    /// # Errors
    /// [`Error::Dimension`] for a view that doesn't fit the others, [`Error::WrongLength`] for a block table that isn't
    /// `[b, max_blocks]`. What else is wrong, is found when it is computed.
    pub fn problem(&self) -> Result<Problem<'a>, Error> {
        let mut problem = self.problem;
        let requests = |indptr: &[i32]| indptr.len().saturating_sub(1);
        let longest = |indptr: &[i32]| {
            let lengths = indptr
                .windows(2)
                .map(|ends| ends[1].saturating_sub(ends[0]));
            usize::try_from(lengths.max().unwrap_or(0)).unwrap_or_default()
        };
        let ([q_b, tokens, h_q, q_width], [kv_b, keys, h_kv, k_width]) = (self.q, self.kv);
        let (b, s_q) = problem
            .q_indptr
            .map_or((q_b, tokens), |indptr| (requests(indptr), longest(indptr)));
        if problem.q_indptr.is_some() {
            same(Argument::Q, 0, q_b, 1)?;
        }
        let rope = self.ropes[0].map_or(0, |dims| dims[3]);
        let mut s_k = keys;
        if let Some(block_table) = self.block_table {
            let max_blocks = block_table.len() / b.max(1);
            right_length(Argument::BlockTable, block_table.len(), b * max_blocks)?;
            s_k = max_blocks.saturating_mul(keys);
            problem.pages = Some(Pages {
                block_table,
                max_blocks,
                stride: max_blocks,
                page_size: keys,
                pages: kv_b,
            });
        } else if let Some(indptr) = problem.kv_indptr {
            same(Argument::Kv, 0, kv_b, 1)?;
            s_k = longest(indptr);
        } else {
            same(Argument::Kv, 0, kv_b, b)?;
        }
        same(Argument::Kv, 3, k_width, q_width)?;
        for (argument, dims, like) in [
            (Argument::QRope, self.ropes[0], self.q),
            (Argument::KRope, self.ropes[1], self.kv),
            (Argument::V, self.v, self.kv),
        ] {
            let dims = dims.unwrap_or(like);
            for i in 0..3 {
                same(argument, i, dims[i], like[i])?;
            }
        }
        let k_rope = self.ropes[1].map_or(0, |dims| dims[3]);
        same(Argument::KRope, 3, k_rope, rope)?;
        problem.shape = ProblemShape {
            b,
            s_q,
            s_k: s_k.min(i32::MAX as usize),
            h_q,
            h_kv,
            d_qk: q_width.saturating_add(rope),
            d_v: self.d_v,
        };
        Ok(problem)
    }

    /// Computes O on one thread.
    ///
    /// # Errors
    /// Whatever is wrong with the arguments; O is then untouched.
    pub fn decode<T: OutputNumber>(
        &self,
        workspace: &mut Workspace,
        o: &mut [T],
    ) -> Result<(), Error> {
        let problem = self.problem()?;
        decode(
            &problem,
            &self.options,
            workspace,
            output(&problem, o, None),
        )
    }

    /// Computes O and lse on one thread.
    ///
    /// # Errors
    /// Whatever is wrong with the arguments; O and lse are then untouched.
    pub fn decode_with_lse<T: OutputNumber>(
        &self,
        workspace: &mut Workspace,
        o: &mut [T],
        lse: &mut [f32],
    ) -> Result<(), Error> {
        let problem = self.problem()?;
        let output = output(&problem, o, Some(lse));
        decode(&problem, &self.options, workspace, output)
    }
}

/// [`Error::Dimension`] unless a dimension is what it must be.
fn same(argument: Argument, dimension: usize, value: usize, needed: usize) -> Result<(), Error> {
    if value == needed {
        return Ok(());
    }
    Err(Error::Dimension {
        argument,
        dimension,
        value,
        needed,
    })
}

/// Dense outputs.
pub fn output<'o, T: OutputNumber>(
    problem: &Problem<'_>,
    o: &'o mut [T],
    lse: Option<&'o mut [f32]>,
) -> Output<'o> {
    let [b, s_q] = problem.q_dims();
    let shape = ProblemShape {
        b,
        s_q,
        ..problem.shape
    };
    Output {
        lse,
        ..Output::dense(shape, T::elements(o), &mut [])
    }
}
