%% An Erlang program: binaries, a table, many processes with heaps of their own, timers. usage: job MIB
-module(job).
-export([main/1]).

mix(X) ->
    A = ((X bxor (X bsr 13)) * 668265263) band 16#3ffffffffffffff,
    B = ((A bxor (A bsr 17)) * 2246822519) band 16#3ffffffffffffff,
    B bxor (B bsr 23).

block(Seed) -> << <<(mix(Seed + I)):64>> || I <- lists:seq(1, 8192) >>.

digest(Blocks) -> lists:foldl(fun(B, H) -> erlang:crc32(H, B) end, 0, Blocks).

worker(Parent, K, Items) ->
    List = [{I, integer_to_list(mix(I * K))} || I <- lists:seq(1, Items)],
    erlang:garbage_collect(),
    Sum = lists:foldl(fun({I, S}, A) -> (A + I * length(S)) band 16#ffffffff end, 0, List),
    receive go -> ok end,
    Again = lists:foldl(fun({I, S}, A) -> (A + I * length(S)) band 16#ffffffff end, 0, List),
    Parent ! {K, Sum =:= Again, Sum}.

main([Arg]) ->
    Mib = list_to_integer(Arg),
    Blocks = [block(K * 10000) || K <- lists:seq(1, Mib * 6)],
    io:format("blocks ~p ~p~n", [length(Blocks), digest(Blocks)]),
    Table = ets:new(table, [set]),
    [ets:insert(Table, {I, mix(I), integer_to_binary(I)}) || I <- lists:seq(1, Mib * 1500)],
    io:format("table ~p ~p~n", [ets:info(Table, size),
        ets:foldl(fun({_, M, B}, S) -> (S + M + size(B)) band 16#ffffffff end, 0, Table)]),
    {ok, Timer} = timer:send_interval(10, tick),
    Parent = self(),
    Workers = [spawn_link(fun() -> worker(Parent, K, Mib * 12) end) || K <- lists:seq(1, 100)],
    [W ! go || W <- Workers],
    Sums = [receive {K, true, Sum} -> Sum end || K <- lists:seq(1, 100)],
    io:format("processes ~p~n", [erlang:phash2(Sums)]),
    receive tick -> io:format("timer~n") end,
    timer:cancel(Timer),
    io:format("again ~p~n", [digest(Blocks)]),
    halt(0).
