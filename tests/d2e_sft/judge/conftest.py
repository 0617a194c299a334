from tests.judge_server import judge, judge_environment, server

__all__ = ["judge", "judge_environment", "server"]
