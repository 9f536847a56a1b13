//! What tensors' elements are.

macro_rules! dtypes {
    ($($dtype:ident $name:literal $size:literal),* $(,)?) => {
        /// What a tensor's elements are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Dtype {
            $($dtype),*
        }

        impl Dtype {
            pub const ALL: &[Self] = &[$(Self::$dtype),*];

            /// torch's and numpy's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$dtype => $name),*
                }
            }

            /// Bytes of an element.
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$dtype => $size),*
                }
            }
        }
    };
}

dtypes! {
    Bf16 "bfloat16" 2,
    // BF16 numbers, where there is no such dtype.
    U16 "uint16" 2,
    F16 "float16" 2,
    F32 "float32" 4,
    E4m3 "float8_e4m3fn" 1,
    U8 "uint8" 1,
    I8 "int8" 1,
    I32 "int32" 4,
    I64 "int64" 8,
    Bool "bool" 1,
}

impl Dtype {
    /// The dtype of a name, with torch's prefix or without.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        let mut all = Self::ALL.iter().copied();
        all.find(|dtype| dtype.name() == name)
    }

    /// Some names, to be read by people.
    pub fn names(dtypes: &[Self]) -> String {
        let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
        names.join(" or ")
    }
}
