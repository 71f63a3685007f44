//! Where blocks are kept: implementations of the model's [`BlockStore`](farbus_model::BlockStore).
