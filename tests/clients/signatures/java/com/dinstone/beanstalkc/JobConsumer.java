package com.dinstone.beanstalkc;

public interface JobConsumer {
    Job reserveJob(long timeout);

    boolean deleteJob(long id);

    boolean releaseJob(long id, int priority, int delay);

    boolean buryJob(long id, int priority);

    void close();
}
