//! Stages as they are sent.

use hikkoshi_wire as wire;

use super::{DestinationStage, SourceStage};

macro_rules! same {
    ($stage:ident: $($name:ident),*) => {
        impl From<$stage> for wire::$stage {
            fn from(stage: $stage) -> Self {
                match stage {
                    $($stage::$name => Self::$name,)*
                }
            }
        }

        impl From<wire::$stage> for $stage {
            fn from(stage: wire::$stage) -> Self {
                match stage {
                    $(wire::$stage::$name => Self::$name,)*
                }
            }
        }
    };
}

same!(SourceStage: Owned, Committed, HandedOver, Done);
same!(DestinationStage: Receiving, Ready, Running, Complete, Declined);
