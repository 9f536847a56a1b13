//! Offsets of the structs' fields, asserted on machines with 64-bit pointers. The C tests assert the
//! same of the header, from the same table.

/// One line of the table.
macro_rules! layout {
    ($($type:ident $name:ident $size:literal { $($field:ident $offset:literal)* })*) => {
        #[cfg(target_pointer_width = "64")]
        const _: () = {
            use core::mem::{offset_of, size_of};
            $(
                assert!(size_of::<crate::types::$type>() == $size, stringify!($name));
                $(assert!(
                    offset_of!(crate::types::$type, $field) == $offset,
                    concat!(stringify!($name), ".", stringify!($field))
                );)*
            )*
        };
    };
}

include!("layout.in");
