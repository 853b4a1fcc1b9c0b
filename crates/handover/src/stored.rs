//! How the values of a record are stored: numbers with their units, and the migration's number as
//! 32 hexadecimal digits.

/// A migration's number.
pub(crate) mod id {
    use hikkoshi_wire::MigrationId;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(id: &MigrationId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:032x}", u128::from_be_bytes(id.to_bytes())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MigrationId, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u128::from_str_radix(&text, 16) {
            Ok(number) if digits => Ok(MigrationId::from_bytes(number.to_be_bytes())),
            _ => Err(D::Error::custom(format!(
                "the migration's number '{text}' does not have 32 hexadecimal digits"
            ))),
        }
    }
}

/// A time, in milliseconds since 1970.
pub(crate) mod unix_ms {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        to.serialize_u64(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let since = Duration::from_millis(u64::deserialize(from)?);
        Ok(UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH))
    }
}

/// A duration that may not be known, in microseconds.
pub(crate) mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let micros = time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        micros.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_micros))
    }
}
