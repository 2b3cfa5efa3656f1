//! Ports: links, nodes and typed interfaces, within a process and between processes.

mod attacks;
mod deaf;
mod frames;
mod interfaces;
mod listening;
mod node;
mod node_processes;
mod processes;
mod ring_orders;
mod support;
