//! Assembly: an `asm!` that interprets blocks on AMX's tiles.
//!
//! A block is interpreted as it is written for the processor, so that nobody writes it twice. It has general registers
//! for operands, eight tiles, and the instructions of [`Op`]; another one, a register without a name or a label that isn't
//! there is a panic. Tiles begin with NaN: no value stays in a tile between two blocks.
//!
//! Blocks with operands in vector registers are fences for the compiler, and have no effect here.

use super::bf16::{add_products, element, flushed};

/// [`core::arch::asm`] of the blocks that the kernels have.
macro_rules! asm {
    // Templates, then operands; at the end all of them.
    (@ [$($template:expr,)*] [$($name:expr => $value:expr,)*]) => {
        $crate::kernel::emulated::assembly::run(
            &[$($template),*],
            &[$($name),*],
            &mut [$($crate::kernel::emulated::assembly::Operand::word($value)),*],
        )
    };
    (@ [$($t:expr,)*] [$($o:tt)*] $template:literal $(, $($rest:tt)*)?) => {
        asm!(@ [$($t,)* $template,] [$($o)*] $($($rest)*)?)
    };
    (@ [$($t:expr,)*] [$($o:tt)*] concat!($($part:tt)*) $(, $($rest:tt)*)?) => {
        asm!(@ [$($t,)* concat!($($part)*),] [$($o)*] $($($rest)*)?)
    };
    // What the compiler has to know and the interpreter doesn't.
    (@ $t:tt $o:tt options($($option:tt)*) $(, $($rest:tt)*)?) => {
        asm!(@ $t $o $($($rest)*)?)
    };
    (@ $t:tt $o:tt out($register:literal) _ $(, $($rest:tt)*)?) => {
        asm!(@ $t $o $($($rest)*)?)
    };
    (@ $t:tt [$($name:expr => $value:expr,)*] inout(zmm_reg) $vector:expr $(, $($rest:tt)*)?) => {{
        $(let _ = $value;)*
        let _ = &mut $vector;
    }};
    (@ $t:tt $o:tt $name:ident = inout(zmm_reg) $value:expr $(, $($rest:tt)*)?) => {
        asm!(@ $t $o inout(zmm_reg) $value)
    };
    (@ $t:tt [$($o:tt)*] in(reg) $value:expr $(, $($rest:tt)*)?) => {
        asm!(@ $t [$($o)* "" => $value,] $($($rest)*)?)
    };
    (@ $t:tt [$($o:tt)*] $name:ident = in(reg) $value:expr $(, $($rest:tt)*)?) => {
        asm!(@ $t [$($o)* stringify!($name) => $value,] $($($rest)*)?)
    };
    (@ $t:tt [$($o:tt)*] $name:ident = inout(reg) $value:expr => _ $(, $($rest:tt)*)?) => {
        asm!(@ $t [$($o)* stringify!($name) => $value,] $($($rest)*)?)
    };
    (@ $t:tt [$($o:tt)*] $name:ident = out(reg) _ $(, $($rest:tt)*)?) => {
        asm!(@ $t [$($o)* stringify!($name) => 0_usize,] $($($rest)*)?)
    };
    ($($block:tt)*) => {
        asm!(@ [] [] $($block)*)
    };
}
pub(crate) use asm;

/// What a general register can hold.
pub trait Operand {
    fn word(self) -> usize;
}

impl Operand for usize {
    fn word(self) -> usize {
        self
    }
}

impl<T> Operand for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Operand for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Operand for &mut T {
    fn word(self) -> usize {
        core::ptr::from_mut(self).expose_provenance()
    }
}

/// 16 rows of 64 bytes.
pub type Tile = [[u32; 16]; 16];

/// An operand's number.
type Register = usize;

/// `base + 1 * index + offset`.
#[derive(Clone, Copy)]
struct Address {
    base: Register,
    index: Option<Register>,
    offset: usize,
}

/// A register or a number.
#[derive(Clone, Copy)]
enum Source {
    Register(Register),
    Number(usize),
}

/// An instruction.
#[derive(Clone, Copy)]
enum Op<'a> {
    /// `ldtilecfg`: of the one configuration that blocks are for.
    Configure(Address),
    /// Nothing that a block could tell: `prefetcht1`, `tilerelease`, labels.
    Nothing,
    TileZero(usize),
    TileLoad(usize, Address),
    TileStore(Address, usize),
    /// `tdpbf16ps`.
    TileDots([usize; 3]),
    Add(Register, Source),
    Shl(Register, Source),
    Dec(Register),
    /// `test` of a register with itself.
    Test(Register),
    /// `mov` between registers.
    Move(Register, Register),
    /// `mov` from memory.
    Load(Register, Address),
    Jump(&'a str),
    JumpIfNotZero(&'a str),
}

/// Runs a block: templates, the operands' names and their values.
///
/// # Safety
/// What the block reads and writes is there.
pub unsafe fn run(templates: &[&str], names: &[&str], registers: &mut [usize]) {
    const MOST: usize = 64;
    let mut ops = [Op::Nothing; MOST];
    assert!(templates.len() <= MOST);
    for (op, template) in ops.iter_mut().zip(templates) {
        *op = decode(template, names);
    }
    let mut processor = Processor {
        registers,
        tiles: [[[u32::MAX; 16]; 16]; 8],
        zero: false,
    };
    let mut at = 0;
    while at < templates.len() {
        at = match ops[at] {
            Op::Jump(label) => target(templates, at, label),
            Op::JumpIfNotZero(label) if !processor.zero => target(templates, at, label),
            op => {
                // SAFETY: the caller's promise.
                unsafe { processor.execute(op) };
                at + 1
            }
        };
    }
}

/// What a block can change beside memory.
struct Processor<'a> {
    registers: &'a mut [usize],
    tiles: [Tile; 8],
    /// The flag: whether the last result was zero.
    zero: bool,
}

impl Processor<'_> {
    /// Executes an instruction that doesn't jump.
    ///
    /// # Safety
    /// What it reads and writes is there.
    unsafe fn execute(&mut self, op: Op<'_>) {
        match op {
            Op::Nothing | Op::Jump(_) | Op::JumpIfNotZero(_) => {}
            Op::Configure(operand) => {
                // SAFETY: the caller's promise.
                let config = unsafe { read::<[u8; 64]>(self.address(operand, 0)) };
                assert!(config == EIGHT_OF_16_X_64, "another configuration of tiles");
            }
            Op::TileZero(tile) => self.tiles[tile] = [[0; 16]; 16],
            Op::TileLoad(tile, operand) => {
                for row in 0..16 {
                    // SAFETY: the caller's promise.
                    self.tiles[tile][row] = unsafe { read(self.address(operand, row)) };
                }
            }
            Op::TileStore(operand, tile) => {
                for row in 0..16 {
                    let to = self.address(operand, row);
                    let to: *mut [u32; 16] = core::ptr::with_exposed_provenance_mut(to);
                    // SAFETY: the caller's promise.
                    unsafe { to.write_unaligned(self.tiles[tile][row]) };
                }
            }
            Op::TileDots([sums, a, b]) => {
                let (a, b) = (self.tiles[a], self.tiles[b]);
                tdpbf16ps(&mut self.tiles[sums], &a, &b);
            }
            Op::Add(to, source) => {
                self.set(to, self.registers[to].wrapping_add(self.value(source)))
            }
            Op::Shl(to, source) => self.set(to, self.registers[to] << self.value(source)),
            Op::Dec(to) => self.set(to, self.registers[to].wrapping_sub(1)),
            Op::Test(register) => self.set(register, self.registers[register]),
            Op::Move(to, from) => self.registers[to] = self.registers[from],
            Op::Load(to, operand) => {
                // SAFETY: the caller's promise.
                self.registers[to] = unsafe { read(self.address(operand, 0)) };
            }
        }
    }

    /// Of a row of a tile, whose index is the distance between rows.
    fn address(&self, operand: Address, row: usize) -> usize {
        let stride = operand.index.map_or(0, |index| self.registers[index]);
        let first = self.registers[operand.base].wrapping_add(operand.offset);
        first.wrapping_add(row.wrapping_mul(stride))
    }

    fn value(&self, source: Source) -> usize {
        match source {
            Source::Register(register) => self.registers[register],
            Source::Number(number) => number,
        }
    }

    /// Writes a register, and the flag.
    fn set(&mut self, register: Register, value: usize) {
        self.registers[register] = value;
        self.zero = value == 0;
    }
}

/// Palette 1: eight tiles, each of 16 rows of 64 bytes.
pub static EIGHT_OF_16_X_64: [u8; 64] = {
    let mut config = [0; 64];
    config[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
        tile += 1;
    }
    config
};

/// # Safety
/// There is a `T` to be read, of which every pattern is a value.
unsafe fn read<T>(at: usize) -> T {
    let at: *const T = core::ptr::with_exposed_provenance(at);
    // SAFETY: the caller's promise.
    unsafe { at.read_unaligned() }
}

/// Where a label is, as `2f` behind an instruction or `2b` before it.
fn target(templates: &[&str], from: usize, label: &str) -> usize {
    let (name, forward) = match label.as_bytes() {
        [name @ .., b'f'] => (name, true),
        [name @ .., b'b'] => (name, false),
        _ => panic!("no label {label}"),
    };
    let is = |template: &&str| matches!(template.as_bytes(), [at @ .., b':'] if at == name);
    let found = if forward {
        let behind = templates[from..].iter().position(is);
        behind.map(|found| from + found)
    } else {
        templates[..from].iter().rposition(is)
    };
    found.unwrap_or_else(|| panic!("no label {label}"))
}

/// The instruction of a line.
fn decode<'a>(template: &'a str, names: &[&str]) -> Op<'a> {
    let (mnemonic, operands) = template.split_once(' ').unwrap_or((template, ""));
    let mut operands = operands.splitn(3, ", ");
    let mut next = || operands.next().unwrap_or_default();
    let register = |text: &str| {
        let name = text.strip_prefix('{').and_then(|x| x.strip_suffix('}'));
        let found = names.iter().position(|&x| Some(x) == name);
        found.unwrap_or_else(|| panic!("no register {text} in {template}"))
    };
    let number = |text: &str| {
        let parsed = text.parse().ok();
        parsed.unwrap_or_else(|| panic!("no number {text} in {template}"))
    };
    let source = |text: &str| {
        if text.starts_with('{') {
            Source::Register(register(text))
        } else {
            Source::Number(number(text))
        }
    };
    let memory = |text: &str| {
        let inner = text.strip_prefix('[').and_then(|x| x.strip_suffix(']'));
        let inner = inner.unwrap_or_else(|| panic!("no address {text} in {template}"));
        let mut terms = inner.split(" + ");
        let mut address = Address {
            base: register(terms.next().unwrap_or_default()),
            index: None,
            offset: 0,
        };
        for term in terms {
            match term.strip_prefix("1*") {
                Some(index) => address.index = Some(register(index)),
                None => address.offset += number(term),
            }
        }
        address
    };
    let tile = |text: &str| {
        let tile = text.strip_prefix("tmm").map(number);
        let tile = tile.filter(|&tile| tile < 8);
        tile.unwrap_or_else(|| panic!("no tile {text} in {template}"))
    };
    match mnemonic {
        "ldtilecfg" => Op::Configure(memory(next())),
        "prefetcht1" => {
            memory(next());
            Op::Nothing
        }
        "tilerelease" => Op::Nothing,
        "tilezero" => Op::TileZero(tile(next())),
        "tileloadd" => Op::TileLoad(tile(next()), memory(next())),
        "tilestored" => Op::TileStore(memory(next()), tile(next())),
        "tdpbf16ps" => Op::TileDots([tile(next()), tile(next()), tile(next())]),
        "add" => Op::Add(register(next()), source(next())),
        "shl" => Op::Shl(register(next()), source(next())),
        "dec" => Op::Dec(register(next())),
        "test" => {
            let tested = register(next());
            assert!(tested == register(next()), "two registers in {template}");
            Op::Test(tested)
        }
        "mov" => {
            let to = register(next());
            match next() {
                from if from.starts_with('[') => Op::Load(to, memory(from)),
                from => Op::Move(to, register(from)),
            }
        }
        "jmp" => Op::Jump(next()),
        "jnz" => Op::JumpIfNotZero(next()),
        label if label.ends_with(':') => Op::Nothing,
        _ => panic!("no instruction {template}"),
    }
}

/// Products of 16 rows of 16 pairs and 16 pairs of 16 columns, added to sums. Even and odd products are summed apart from zero on,
/// each fused, then added to each other and to the sum; all rounds to nearest, and subnormals are zeros (Intel SDM,
/// TDPBF16PS).
pub fn tdpbf16ps(sums: &mut Tile, a: &Tile, b: &Tile) {
    let halves = |pair: u32| [pair as u16, (pair >> 16) as u16].map(element);
    let b: [[[f32; 16]; 2]; 16] = b.map(|row| {
        let pairs = row.map(halves);
        core::array::from_fn(|half| pairs.map(|pair| pair[half]))
    });
    for (sums, a) in sums.iter_mut().zip(a) {
        let mut totals = [[0.0; 16]; 2];
        for (a, b) in a.iter().zip(&b) {
            for ((totals, a), b) in totals.iter_mut().zip(halves(*a)).zip(b) {
                add_products(totals, &[a; 16], b);
            }
        }
        let [even, odd] = totals;
        for (i, sum) in sums.iter_mut().enumerate() {
            let products = add(even[i], odd[i]);
            *sum = add(flushed(f32::from_bits(*sum)), products).to_bits();
        }
    }
}

/// The sum of numbers that are not subnormal.
fn add(a: f32, b: f32) -> f32 {
    let sum = a + b;
    if sum.is_nan() {
        super::arithmetic::nan(&[a, b])
    } else {
        flushed(sum)
    }
}
