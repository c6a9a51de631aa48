"""Agents: the unit that is saved, attacked and certified."""

from smoothrl.agents.agent import Agent, AgentInfo, Smoothing
from smoothrl.agents.file import load_agent, read_header, save_agent
from smoothrl.agents.normaliser import Moments, Normaliser

__all__ = [
    "Agent",
    "AgentInfo",
    "Moments",
    "Normaliser",
    "Smoothing",
    "load_agent",
    "read_header",
    "save_agent",
]
