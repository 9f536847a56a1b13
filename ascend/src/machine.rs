//! The chip: sizes, clocks and rates, each with its source.

use amla::tile::ascend as memories;

use crate::arch::CUBE_FLOP_PER_CYCLE;
use crate::fault::Fault;

/// A chip of the Ascend 910's kind.
///
/// The sources of the numbers are the paper and, where its table of memories (`tab:hier mem`) has a dash,
/// CANN's platform file for the same core (`Ascend910B1.ini`, section `AICoreMemoryRates`).
/// [`Calibration`] is fitted and [`Machine::hbm_credit`] assumed; no other number was chosen to fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Cube cores that share GM: 48 on the two dies (`subsec:cubestagepipeline`).
    pub cube_cores: usize,
    /// BF16 peak of all Cube cores, in FLOP/s: 614 TFLOPS are 86.8 % of it (abstract).
    pub peak: f64,
    /// HBM bandwidth of both dies, in bytes per second: 3.2 TB/s (`tab:hier mem`).
    pub hbm: f64,
    /// Unused bandwidth of its share of HBM that a core may accumulate and use later, in blocks of keys.
    /// An assumption about how far 48 cores are out of step. With 0, unused bandwidth is lost.
    pub hbm_credit: f64,
    /// Total from L2 to a Cube core and its Vector cores, in bytes per cycle (CANN's `l2_read_rate`).
    pub l2_read: f64,
    /// Total from a Cube core and its Vector cores to L2, atomic additions included, in bytes per cycle
    /// (CANN's `l2_write_rate`).
    pub l2_write: f64,
    /// Between L2 and one Vector core's UB, each way, in bytes per cycle (CANN's `ub_to_l2_rate`).
    pub ub_port: f64,
    /// L1 to L0A, in bytes per cycle (CANN's `l1_to_l0_a_rate`).
    pub l0a_port: f64,
    /// L1 to L0B, in bytes per cycle (CANN's `l1_to_l0_b_rate`).
    pub l0b_port: f64,
    /// FP32 lanes of a Vector core, whose instructions have operands of 256 bytes.
    pub lanes: usize,
    /// L1 of a Cube core, in bytes (`tab:hier mem`).
    pub l1: usize,
    /// L0A, in bytes (`tab:hier mem`).
    pub l0a: usize,
    /// L0B, in bytes (`tab:hier mem`).
    pub l0b: usize,
    /// L0C, in bytes (`tab:hier mem`).
    pub l0c: usize,
    /// UB of a Vector core, in bytes (`tab:hier mem`).
    pub ub: usize,
    /// The fitted constants.
    pub calibration: Calibration,
}

/// Three constants that neither the paper nor the platform file has. `cargo run --release --example ascend
/// -- fit` fits them on four cells of the paper's performance table (`tab:perfexp`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Host time before the first instruction and after the last, in seconds.
    pub launch: f64,
    /// The share of [`Machine::hbm`] that reads of keys attain.
    pub hbm_share: f64,
    /// The clock under load, as a share of the clock that [`Machine::peak`] implies. It scales every
    /// duration in cycles.
    pub clock_share: f64,
}

impl Calibration {
    /// The nominal chip: no launch, all of HBM's bandwidth, the nominal clock.
    pub const IDEAL: Self = Self {
        launch: 0.0,
        hbm_share: 1.0,
        clock_share: 1.0,
    };

    /// The result of `fit` for the four corners of `tab:perfexp` ([`CORNERS`](crate::paper::CORNERS)).
    pub const FITTED: Self = Self {
        launch: 22.2e-6,
        hbm_share: 0.725,
        clock_share: 0.887,
    };
}

impl Machine {
    /// The chip of `tab:perfexp`.
    pub const ASCEND_910: Self = Self {
        cube_cores: 48,
        peak: 614e12 / 0.868,
        hbm: 3.2e12,
        hbm_credit: 1.0,
        l2_read: 110.0,
        l2_write: 86.0,
        ub_port: 64.0,
        l0a_port: 512.0,
        l0b_port: 256.0,
        lanes: 64,
        l1: memories::L1,
        l0a: memories::L0A,
        l0b: memories::L0B,
        l0c: memories::L0C,
        ub: memories::UB,
        calibration: Calibration::FITTED,
    };

    /// # Errors
    /// The size that is 0, or the rate that isn't positive.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        for (what, value) in [("cube cores", self.cube_cores), ("lanes", self.lanes)] {
            if value == 0 {
                let multiple_of = 1;
                return Err(Fault::Size {
                    what,
                    value,
                    multiple_of,
                });
            }
        }
        let Calibration {
            launch,
            hbm_share,
            clock_share,
        } = self.calibration;
        for (what, rate) in [
            ("peak", self.peak),
            ("HBM's bandwidth", self.hbm),
            ("L2's read rate", self.l2_read),
            ("L2's write rate", self.l2_write),
            ("UB's port", self.ub_port),
            ("L0A's port", self.l0a_port),
            ("L0B's port", self.l0b_port),
            ("HBM's share", hbm_share),
            ("the clock's share", clock_share),
            // 0 is valid for these.
            ("HBM's credit", self.hbm_credit + f64::MIN_POSITIVE),
            ("the launch", launch + f64::MIN_POSITIVE),
        ] {
            if !(rate.is_finite() && rate > 0.0) {
                return Err(Fault::Rate { what });
            }
        }
        Ok(())
    }

    /// Cycles per second under load.
    #[must_use]
    pub fn clock(&self) -> f64 {
        let nominal = self.peak / (self.cube_cores as f64 * CUBE_FLOP_PER_CYCLE);
        nominal * self.calibration.clock_share
    }

    /// One Cube core's even share of HBM's bandwidth, in bytes per second.
    #[must_use]
    pub fn hbm_per_core(&self) -> f64 {
        self.hbm * self.calibration.hbm_share / self.cube_cores as f64
    }
}
