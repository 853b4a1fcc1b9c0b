//! How fast QEMU may copy a disk.

use hikkoshi_account::DiskCopy;

/// The limit of a job, in bytes a second, as QEMU takes it: 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobSpeed(u64);

impl JobSpeed {
    const NONE: Self = Self(0);

    /// As QEMU takes it.
    pub(crate) fn bytes_per_second(self) -> u64 {
        self.0
    }

    /// The limit of each of so many jobs that share one.
    pub(crate) fn of_each(limit: Option<u64>, jobs: usize) -> Self {
        let jobs = u64::try_from(jobs).unwrap_or(u64::MAX).max(1);
        limit.map_or(Self::NONE, |limit| {
            // QEMU takes a signed number.
            Self((limit / jobs).clamp(1, i64::MAX.unsigned_abs()))
        })
    }

    /// The limits of jobs that are so far. Those that have copied everything need none: what they
    /// send is what the guest writes.
    pub(crate) fn of_all(limit: Option<u64>, jobs: &[DiskCopy]) -> Vec<Self> {
        let copying = jobs.iter().filter(|job| !job.in_sync).count();
        let of = |job: &DiskCopy| match job.in_sync {
            true => Self::NONE,
            false => Self::of_each(limit, copying),
        };
        jobs.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds(limit: Option<u64>, in_sync: &[bool]) -> Vec<u64> {
        let of = |&in_sync: &bool| DiskCopy {
            name: "vda".into(),
            copied_bytes: 0,
            total_bytes: 1,
            in_sync,
        };
        let jobs: Vec<_> = in_sync.iter().map(of).collect();
        let speeds = JobSpeed::of_all(limit, &jobs);
        speeds.into_iter().map(|speed| speed.0).collect()
    }

    #[test]
    fn the_copies_that_are_not_complete_share_the_limit() {
        assert_eq!(speeds(Some(900), &[false, false, false]), [300; 3]);
        assert_eq!(speeds(Some(900), &[true, false, false]), [0, 450, 450]);
        assert_eq!(speeds(Some(900), &[true, true, false]), [0, 0, 900]);
        assert_eq!(speeds(Some(900), &[true, true]), [0, 0]);
        assert_eq!(speeds(None, &[false, true]), [0, 0]);
        assert_eq!(speeds(Some(1), &[false, false]), [1, 1], "0 is no limit");
        let most = i64::MAX.unsigned_abs();
        assert_eq!(speeds(Some(u64::MAX), &[false]), [most]);
    }
}
