//! What is booked, as far as the account must know.

/// What a booking is of. All kinds count against the limit alike; they differ in whether the driver's
/// own counter shows them, which is what tells bookings from overhead.
// As wide as the figures beside it in a reservation, which then has no gaps and is moved by whole words.
#[repr(u64)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory of the device, which the driver's counter of the process shows.
    #[default]
    Device,
    /// Managed memory, which moves between host and device and is not in that counter.
    Managed,
}
