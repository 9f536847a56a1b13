//! The operator against candle's own, and what it refuses.

use amla_candle::{D_QK, Memory, PagedMla, own};
use candle_core::{DType, Device, Result, Tensor};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

const TABLE: [i32; 6] = [4, 0, 2, 1, 3, -1];

fn normal(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::randn(0_f32, 1.0, shape, &Device::Cpu)?.to_dtype(dtype)
}

fn op<'a>(memory: &'a Memory, lengths: &'a [i32]) -> PagedMla<'a> {
    PagedMla {
        block_table: &TABLE,
        lengths,
        softmax_scale: 0.0722,
        memory,
    }
}

#[test]
fn results_are_candles() -> Result<()> {
    let memory = Memory::default();
    for s_q in [1, 3] {
        let (q, cache) = (
            normal(&[2, s_q, 16, D_QK], DType::BF16)?,
            normal(&[5, 16, D_QK], DType::BF16)?,
        );
        let op = op(&memory, &[37, 32]);
        let o = op.forward(&q, &cache)?;
        assert_eq!(o.dims(), [2, s_q, 16, 512]);
        let error = own::relative_error(&o, &own::forward(&op, &q, &cache)?)?;
        assert!(error < 5e-3, "s_q {s_q}: {error}");

        // Strides: heads before positions, and a cache within a larger tensor. The bits stay.
        let swapped = q.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        let larger = Tensor::cat(&[&cache, &cache], 2)?;
        let larger = Tensor::cat(&[&larger, &larger], 0)?;
        let inner = larger.narrow(2, D_QK, D_QK)?.narrow(0, 5, 5)?;
        let same = op.forward(&swapped, &inner)?;
        assert_eq!(own::relative_error(&same, &o)?, 0.0);
    }
    Ok(())
}

#[test]
fn calls_at_the_same_time_share_memory() -> Result<()> {
    let memory = Memory::default();
    let (q, cache) = (
        normal(&[2, 1, 64, D_QK], DType::BF16)?,
        normal(&[5, 16, D_QK], DType::BF16)?,
    );
    let op = op(&memory, &[37, 32]);
    let want = op.forward(&q, &cache)?;
    (0..16).into_par_iter().try_for_each(|_| {
        let o = op.forward(&q, &cache)?;
        assert_eq!(own::relative_error(&o, &want)?, 0.0);
        Ok(())
    })
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let memory = Memory::default();
    let (q, cache) = (
        normal(&[2, 1, 16, D_QK], DType::BF16)?,
        normal(&[5, 16, D_QK], DType::BF16)?,
    );
    let refused = |lengths: &[i32], q: &Tensor, cache: &Tensor, why: &str| {
        let error = op(&memory, lengths)
            .forward(q, cache)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error} lacks {why}");
    };
    refused(
        &[37, 32],
        &q.to_dtype(DType::F32)?,
        &cache,
        "q is F32, expected BF16",
    );
    refused(&[37, 32], &q, &cache.to_dtype(DType::F16)?, "cache is F16");
    refused(
        &[37, 32],
        &q.narrow(3, 0, 512)?,
        &cache,
        "expected 576 columns",
    );
    refused(&[37, 32], &q, &cache.t()?, "strides");
    refused(&[37, 49], &q, &cache, "cache_seqlens[1] is 49");
    // Its third page is -1.
    refused(&[37, 33], &q, &cache, "block_table[1][2] is -1");
    refused(&[37], &q, &cache, "cache_seqlens");
    Ok(())
}
