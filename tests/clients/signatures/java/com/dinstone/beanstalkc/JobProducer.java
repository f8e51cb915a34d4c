package com.dinstone.beanstalkc;

public interface JobProducer {
    long putJob(int priority, int delay, int ttr, byte[] data);

    void close();
}
