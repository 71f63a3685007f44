//! The folder in which a host keeps its state, as files that no other user can put in farbus's way.

pub mod folder;
pub mod hand_over;
pub mod spare_room;
pub mod state_folder;
