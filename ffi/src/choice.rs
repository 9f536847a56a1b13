//! Numbers that stand for choices, and their names for messages. A new choice is a line here.

use core::fmt;

use crate::types::*;

/// Numbers and their names.
pub type Names = &'static [(u32, &'static str)];

/// What a number may be.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// Each of these names.
    All(Names),
    /// Some of these names: the numbers that a field takes.
    Some(Names, &'static [u32]),
    /// Sums of these.
    Flags(Names),
    /// Nothing but 0.
    Zero,
}

pub const FLAGS: Known = Known::Flags(&[
    (AMLA_CAUSAL, "AMLA_CAUSAL"),
    (AMLA_LIST_STRIDES, "AMLA_LIST_STRIDES"),
]);
pub const RESCALE: Known = Known::All(&[
    (AMLA_RESCALE_EXACT, "EXACT"),
    (AMLA_RESCALE_COMPENSATED, "COMPENSATED"),
]);
pub const PRECISION: Known = Known::All(&[
    (AMLA_PRECISION_BF16, "BF16"),
    (AMLA_PRECISION_BF16X2, "BF16X2"),
    (AMLA_PRECISION_BF16_INPUTS, "BF16_INPUTS"),
]);
pub const LSE_BASE: Known = Known::All(&[(AMLA_LSE_BASE_E, "E"), (AMLA_LSE_BASE_2, "2")]);
pub const LSE_EMPTY: Known = Known::All(&[
    (AMLA_LSE_EMPTY_INFINITY, "INFINITY"),
    (AMLA_LSE_EMPTY_MINUS_INFINITY, "MINUS_INFINITY"),
]);
pub const INPUT: Known = Known::Some(DTYPES, INPUTS);
pub const OUTPUT: Known = Known::Some(DTYPES, OUTPUTS);

const DTYPES: Names = &[
    (AMLA_DTYPE_BF16, "BF16"),
    (AMLA_DTYPE_F16, "F16"),
    (AMLA_DTYPE_F32, "F32"),
    (AMLA_DTYPE_FP8, "FP8"),
    (AMLA_DTYPE_MODEL1, "MODEL1"),
    (AMLA_DTYPE_INT8, "INT8"),
    (AMLA_DTYPE_Q8_0, "Q8_0"),
    (AMLA_DTYPE_Q4_0, "Q4_0"),
    (AMLA_DTYPE_E4M3, "E4M3"),
];
/// Formats of tensors.
pub const INPUTS: &[u32] = &[
    AMLA_DTYPE_BF16,
    AMLA_DTYPE_F16,
    AMLA_DTYPE_F32,
    AMLA_DTYPE_FP8,
    AMLA_DTYPE_MODEL1,
    AMLA_DTYPE_INT8,
    AMLA_DTYPE_Q8_0,
    AMLA_DTYPE_Q4_0,
    AMLA_DTYPE_E4M3,
];
/// Formats of O.
pub const OUTPUTS: &[u32] = &[AMLA_DTYPE_BF16, AMLA_DTYPE_F16, AMLA_DTYPE_F32];

impl Known {
    /// Says that `argument` has a `value` that is none of these.
    pub fn refuse(
        self,
        f: &mut fmt::Formatter<'_>,
        argument: &str,
        value: u32,
    ) -> Result<(), fmt::Error> {
        let names = match self {
            Self::All(names) | Self::Some(names, _) => names,
            Self::Flags(names) => {
                write!(f, "{argument} is {value:#x}, not a sum of ")?;
                let flags = names.iter().copied();
                return list(f, flags, |f, (flag, name)| write!(f, "{name} ({flag:#x})"));
            }
            Self::Zero => return write!(f, "{argument} is {value}, not 0"),
        };
        match names.iter().find(|(number, _)| *number == value) {
            Some((_, name)) => write!(f, "{argument} is {name}, not ")?,
            None => write!(f, "{argument} is {value}, not ")?,
        }
        let takes = |number: u32| match self {
            Self::Some(_, numbers) => numbers.contains(&number),
            _ => true,
        };
        let known = names.iter().filter(|(number, _)| takes(*number));
        list(f, known, |f, (_, name)| f.write_str(name))
    }
}

/// Writes items as "a, b or c".
pub fn list<T>(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = T>,
    write: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    let mut items = items.peekable();
    let mut first = true;
    while let Some(item) = items.next() {
        let between = match (first, items.peek().is_some()) {
            (true, _) => "",
            (false, true) => ", ",
            (false, false) => " or ",
        };
        f.write_str(between)?;
        write(f, item)?;
        first = false;
    }
    Ok(())
}
